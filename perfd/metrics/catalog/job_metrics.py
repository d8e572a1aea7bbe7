"""Metrics about a job: progress, efficiency, findings and their culprits."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.collector import ColumnKind
from perfd.metrics.catalog.metric_info import MetricInfo, metric
from perfd.metrics.catalog.nccl_metrics import NCCL_METRICS

_JOB = ("job",)
_NO_STEPS = "Before the first steady step, or without a log."
_NO_TIMERS = "Without phase timers in the log (Megatron-LM: `--timing-log-level 1` or 2)."
_LOG = "training log"
_ANALYSIS = "perfd.analysis, over the newest steady steps (`analysis.window_steps`)"

JOB_METRICS: Sequence[MetricInfo] = (
    metric(
        "perfd_job_info",
        "Framework, precision and parallel layout of a job; always 1.",
        labels=(*_JOB, "framework", "framework_version", "precision", "tp", "pp", "dp", "cp", "ep", "vp"),
        source=_LOG,
        absent="Before the log has described the job.",
    ),
    metric(
        "perfd_job_ended",
        "1 after the job has ended, else 0.",
        labels=_JOB,
        source="agent, log",
        absent="15 minutes after the end, as all series of the job.",
    ),
    metric(
        "perfd_job_outcome_info",
        "How the job ended; always 1. `outcome` is `completed`, `failed`, `signal`, `cancelled`, "
        "`preempted`, `time_limit`, `out_of_memory`, `node_failure` or `unknown`; `exit_code` may be empty.",
        labels=(*_JOB, "outcome", "exit_code"),
        source="agent, log",
        absent="While the job runs, and from 15 minutes after its end.",
    ),
    metric(
        "perfd_job_attempt",
        "Number of the job's current attempt, from 1; increases when steps go back.",
        labels=_JOB,
        source=_LOG,
    ),
    metric(
        "perfd_job_ranks",
        "Ranks of the job.",
        labels=_JOB,
        source="training log, else placements of ranks",
        absent="When neither is known.",
    ),
    metric("perfd_job_nodes", "Nodes reporting the job.", labels=_JOB, source="agents"),
    metric("perfd_step", "Newest step in the log.", labels=_JOB, source=_LOG, absent=_NO_STEPS),
    metric(
        "perfd_train_steps",
        "Number of steps after which the job ends.",
        labels=_JOB,
        source=_LOG,
        absent="When the log does not have it.",
    ),
    metric(
        "perfd_loss", "Newest loss.", labels=_JOB, source=_LOG, absent="When the log has none, or it is NaN."
    ),
    metric(
        "perfd_step_time_seconds",
        "Median step time over the newest steady steps.",
        labels=_JOB,
        source=_ANALYSIS,
        absent=_NO_STEPS,
    ),
    metric(
        "perfd_step_time_last_seconds",
        "Time of the newest step, steady or not.",
        labels=_JOB,
        source=_LOG,
        absent="When the newest line has no step time.",
    ),
    metric(
        "perfd_step_time_p95_seconds",
        "p95 of the step time over the newest steady steps.",
        labels=_JOB,
        source=_ANALYSIS,
        absent=_NO_STEPS,
    ),
    metric(
        "perfd_step_time_baseline_seconds",
        "Median step time before the newest 50 lines of the log; in a young job, before the newest quarter.",
        labels=_JOB,
        source="perfd.analysis",
        absent="With fewer than 13 such lines.",
    ),
    metric(
        "perfd_step_time_regression_ratio",
        "Growth of step time over the baseline: 0.1 is 10% slower, 0 without. A step is long if it is 10% "
        "and four standard deviations above the baseline. A growth begins with three long lines in a row and "
        "ends with three that are not; a periodic stall is one when it came three times.",
        labels=_JOB,
        source="perfd.analysis",
        absent="Without a baseline.",
    ),
    metric(
        "perfd_steady_steps",
        "Steady steps over which the medians of this job are taken, at most `analysis.window_steps` lines.",
        labels=_JOB,
        source=_ANALYSIS,
        absent="Without progress lines in the log.",
    ),
    metric(
        "perfd_step_time_jitter_ratio",
        "Spread of step times relative to their median.",
        labels=_JOB,
        source=_ANALYSIS,
        absent=_NO_STEPS,
    ),
    metric(
        "perfd_tokens_per_second",
        "Throughput of the whole job in tokens.",
        labels=_JOB,
        source=_ANALYSIS,
        absent="When batch size or sequence length is unknown.",
    ),
    metric(
        "perfd_samples_per_second",
        "Throughput of the whole job in samples.",
        labels=_JOB,
        source=_ANALYSIS,
        absent="When the batch size is unknown.",
    ),
    metric(
        "perfd_model_flops_per_second_per_gpu",
        "Model FLOP/s per GPU, without recomputation.",
        labels=(*_JOB, "convention"),
        source="perfd.analysis from the model's shape, else the log's own figure",
        absent="When neither is known.",
    ),
    metric(
        "perfd_mfu_ratio",
        "Model FLOP/s over the dense peak of the GPU (PaLM, arXiv:2204.02311, appendix B).",
        labels=(*_JOB, "convention"),
        source=_ANALYSIS,
        absent="When model FLOP/s or the GPU's peak is unknown.",
    ),
    metric(
        "perfd_hfu_ratio",
        "As perfd_mfu_ratio, but including recomputed forward work.",
        labels=(*_JOB, "convention"),
        source=_ANALYSIS,
        absent="When MFU is absent, or recomputation is unknown.",
    ),
    metric(
        "perfd_mfu_clock_adjusted_ratio",
        "MFU over the peak at the GPUs' actual clock; for diagnosis.",
        labels=(*_JOB, "convention"),
        source=_ANALYSIS,
        absent="When MFU is absent, or the clocks are unknown.",
    ),
    metric(
        "perfd_mfu_upper_ratio",
        "Upper bound of MFU by the activity of the tensor cores.",
        labels=_JOB,
        source="NVML's GPM",
        absent="When MFU is known, or the GPUs do not report the activity.",
    ),
    metric(
        "perfd_tensor_active_ratio",
        "Share of time in which the tensor cores are active: an independent check of MFU.",
        labels=_JOB,
        source="NVML's GPM, over the newest steady steps",
        absent="When the GPUs do not report it.",
    ),
    metric(
        "perfd_finding_confidence_ratio",
        "Confidence in a finding about what costs the job time; the summary has the evidence.",
        labels=(*_JOB, "kind"),
        source=_ANALYSIS,
        absent="Without a finding of that kind.",
    ),
    metric(
        "perfd_peak_flops_per_second",
        "Dense peak of one GPU at the job's precision.",
        labels=_JOB,
        source="perfd/data/gpu_peaks.yaml and `analysis.gpu_peaks_file`",
        absent="When the GPU's model is not in the table.",
    ),
    metric(
        "perfd_communication_share_ratio",
        "Share of a step with communication, overlapped with compute or not.",
        labels=(*_JOB, "source"),
        source=_ANALYSIS,
        absent=_NO_TIMERS,
    ),
    metric(
        "perfd_communication_exposed_ratio",
        "Share of a step with exposed communication, the upper bound of what overlap can save.",
        labels=(*_JOB, "source"),
        source=_ANALYSIS,
        absent="When no source measures exposed communication.",
    ),
    metric(
        "perfd_communication_dimension_share_ratio",
        "Share of a step with communication of a parallel dimension, overlapped with compute or not.",
        labels=(*_JOB, "dimension", "source"),
        source=_ANALYSIS,
        absent="As perfd_communication_share_ratio, or when the groups are unknown.",
    ),
    metric(
        "perfd_communication_dimension_wait_ratio",
        "The part of perfd_communication_dimension_share_ratio that waits for other ranks.",
        labels=(*_JOB, "dimension", "source"),
        source=_ANALYSIS,
        absent="Without NCCL plugin and capture, or when too few operations could be matched.",
    ),
    metric(
        "perfd_communication_dimension_exposed_ratio",
        "Share of a step with exposed communication of a parallel dimension.",
        labels=(*_JOB, "dimension", "source"),
        source=_ANALYSIS,
        absent="When no timer, schedule or capture measures it; see `missing` in the summary.",
    ),
    metric(
        "perfd_pipeline_bubble_theory_ratio",
        "Pipeline bubble of the schedule with equal stages.",
        labels=_JOB,
        source="parallel layout and batch sizes in the log",
        absent="Without pipeline parallelism, or when sizes are unknown.",
    ),
    metric(
        "perfd_pipeline_stall_ratio",
        "Measured idle share of the forward-backward window, per stage; without the label, of the job.",
        labels=(*_JOB, "stage"),
        source=_ANALYSIS,
        absent="Without forward and backward timers in the log (Megatron-LM: `--timing-log-level 2`).",
    ),
    metric(
        "perfd_pipeline_stage_compute_seconds",
        "Forward and backward time per step, by stage.",
        labels=(*_JOB, "stage"),
        source=_ANALYSIS,
        absent="As perfd_pipeline_stall_ratio.",
    ),
    metric(
        "perfd_pipeline_excess_ratio",
        "Measured stall minus the schedule's pipeline bubble.",
        labels=_JOB,
        source=_ANALYSIS,
        absent="As perfd_pipeline_stall_ratio.",
    ),
    *NCCL_METRICS,
    metric(
        "perfd_culprit_confidence_ratio",
        "Confidence that a rank is the culprit of a finding.",
        labels=(*_JOB, "kind", "rank"),
        source=_ANALYSIS,
        absent="When the rank is not a culprit.",
    ),
    metric(
        "perfd_data_share_ratio",
        "Share of a step spent waiting for data loading.",
        labels=_JOB,
        source=_ANALYSIS,
        absent=_NO_TIMERS,
    ),
    metric(
        "perfd_optimizer_share_ratio",
        "Share of a step spent in the optimizer.",
        labels=_JOB,
        source=_ANALYSIS,
        absent=_NO_TIMERS,
    ),
    metric(
        "perfd_memory_used_ratio",
        "Used share of device memory of the fullest GPU.",
        labels=_JOB,
        source="NVML, else the log's memory report",
        absent="Without either.",
    ),
    metric(
        "perfd_goodput_ratio",
        "Share of wall time spent on steps at the steady step time (goodput).",
        labels=_JOB,
        source="perfd.analysis, over the newest steps, steady or not",
        absent="Before the job has made enough steps.",
    ),
    metric(
        "perfd_step_phase_seconds",
        "Median time of a phase timer per step over the newest steps; `stat` is min or max over ranks.",
        labels=(*_JOB, "phase", "stat"),
        source=_LOG,
        absent=_NO_TIMERS,
    ),
    metric(
        "perfd_log_silent_seconds",
        "Time since the newest line of all logs of the job; grows during a hang.",
        labels=_JOB,
        source="log collector",
        absent="When no log is read, or the job has ended.",
    ),
    metric(
        "perfd_log_lines_total",
        "Lines read from all logs of the job.",
        labels=_JOB,
        source="log collector",
        absent="When no log is read.",
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_log_unrecognized_lines_total",
        "Lines that no parser recognized.",
        labels=_JOB,
        source="log collector",
        absent="When no log is read.",
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_hardware_errors_total",
        "XID events, ECC errors and lost GPUs; `code` is the XID.",
        labels=(*_JOB, "node", "gpu", "code"),
        source="NVML events",
        absent="Before the first error.",
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_alerts_firing",
        "Alerts of perfd's rule engine that are firing.",
        labels=(*_JOB, "alertname"),
        source="perfd.rules",
        absent="When the alert is not firing.",
    ),
    metric(
        "perfd_captures",
        "Captures by overall outcome; `open` until all ranks have one.",
        labels=(*_JOB, "state"),
        source="perfd.capture",
        absent="Without captures.",
    ),
    metric(
        "perfd_capture_ranks",
        "Ranks of captures by outcome.",
        labels=(*_JOB, "state"),
        source="perfd.capture",
        absent="Without captures.",
    ),
)
