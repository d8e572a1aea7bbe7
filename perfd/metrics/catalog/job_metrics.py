"""Metrics about a job: progress, efficiency, findings and their culprits."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.metrics.catalog.capture_metrics import CAPTURE_METRICS
from perfd.metrics.catalog.metric_info import NODE, MetricInfo, of_job
from perfd.metrics.catalog.nccl_metrics import NCCL_METRICS

_NO_STEPS = "Before the first steady step, or without a log."
_NO_TIMERS = "Without phase timers in the log (Megatron-LM: `--timing-log-level 1` or 2)."
_LOG = "training log"
_ANALYSIS = "perfd.analysis, over the newest steady steps (`analysis.window_steps`)"

JOB_METRICS: Sequence[MetricInfo] = (
    of_job(
        "perfd_job_info",
        "Framework, precision and parallel layout of a job; always 1.",
        labels=("framework", "framework_version", "precision", "tp", "pp", "dp", "cp", "ep", "vp"),
        source=_LOG,
        absent="Before the log has described the job.",
    ),
    of_job(
        "perfd_job_title_info",
        "The user's name for the job (SLURM: its name; `perfd_job` has its number), its job array and the "
        "index in it; always 1.",
        labels=("title", "array_job", "array_task"),
        source="scheduler",
        absent="When the scheduler has no such name.",
    ),
    of_job(
        "perfd_job_node_het_group",
        "A node's group in a heterogeneous SLURM job, from 0.",
        labels=("node",),
        source="scheduler",
        absent="For all other jobs.",
    ),
    of_job(
        "perfd_job_ended",
        "1 after the job has ended, else 0.",
        source="agent, log",
        absent="15 minutes after the end, as all series of the job.",
    ),
    of_job(
        "perfd_job_outcome_info",
        "How the job ended; always 1. `outcome` is `completed`, `failed`, `signal`, `cancelled`, "
        "`preempted`, `time_limit`, `out_of_memory`, `node_failure` or `unknown`; `exit_code` may be empty.",
        labels=("outcome", "exit_code"),
        source="agent, log",
        absent="While the job runs, and from 15 minutes after its end.",
    ),
    of_job(
        "perfd_job_attempt",
        "Number of the job's current attempt, from 1; increases when steps go back.",
        source=_LOG,
    ),
    of_job(
        "perfd_job_ranks",
        "Ranks of the job.",
        source="training log, else placements of ranks",
        absent="When neither is known.",
    ),
    of_job("perfd_job_nodes", "Nodes reporting the job.", source="agents"),
    of_job("perfd_step", "Newest step in the log.", source=_LOG, absent=_NO_STEPS),
    of_job(
        "perfd_train_steps",
        "Number of steps after which the job ends.",
        source=_LOG,
        absent="When the log does not have it.",
    ),
    of_job("perfd_loss", "Newest loss.", source=_LOG, absent="When the log has none, or it is NaN."),
    of_job(
        "perfd_learning_rate",
        "Learning rate of the newest step.",
        source=_LOG,
        absent="When the log has none.",
    ),
    of_job(
        "perfd_step_time_seconds",
        "Median step time over the newest steady steps.",
        source=_ANALYSIS,
        absent=_NO_STEPS,
    ),
    of_job(
        "perfd_step_time_last_seconds",
        "Time of the newest step, steady or not.",
        source=_LOG,
        absent="When the newest line has no step time.",
    ),
    of_job(
        "perfd_step_time_p95_seconds",
        "p95 of the step time over the newest steady steps.",
        source=_ANALYSIS,
        absent=_NO_STEPS,
    ),
    of_job(
        "perfd_step_time_baseline_seconds",
        "Median step time just before a growth; else before the newest 50 lines, in a young job before the "
        "newest quarter.",
        source="perfd.analysis",
        absent="With fewer than 13 such lines, unless they show a growth.",
    ),
    of_job(
        "perfd_step_time_regression_ratio",
        "Growth of step time over the baseline: 0.1 is 10% slower, 0 without. A growth is that of lines "
        "that take 2 s in all over the eight before: 10%, of two lines, or three with only six before, 25%, "
        "and five standard errors. Two unlike lines are none in a job that had such pauses. It ends with "
        "three usual lines in a row. A periodic stall is one when it came three times at equal intervals, or "
        "twice if each doubled a step and none did before.",
        source="perfd.analysis",
        absent="Without a baseline.",
    ),
    of_job(
        "perfd_steady_steps",
        "Steady steps over which the medians of this job are taken, at most `analysis.window_steps` lines.",
        source=_ANALYSIS,
        absent="Without progress lines in the log.",
    ),
    of_job(
        "perfd_step_time_jitter_ratio",
        "Spread of step times relative to their median.",
        source=_ANALYSIS,
        absent="With fewer than ten lines, and where operations show what may be no steps (`steps.doubt`).",
    ),
    of_job(
        "perfd_tokens_per_second",
        "Throughput of the whole job in tokens.",
        source=_ANALYSIS,
        absent="When batch size or sequence length is unknown.",
    ),
    of_job(
        "perfd_samples_per_second",
        "Throughput of the whole job in samples.",
        source=_ANALYSIS,
        absent="When the batch size is unknown.",
    ),
    of_job(
        "perfd_model_flops_per_second_per_gpu",
        "Model FLOP/s per GPU, without recomputation.",
        labels=("convention",),
        source="perfd.analysis from the model's shape, else the log's own figure",
        absent="When neither is known.",
    ),
    of_job(
        "perfd_mfu_ratio",
        "Model FLOP/s over the dense peak of the GPU (PaLM, arXiv:2204.02311, appendix B).",
        labels=("convention",),
        source=_ANALYSIS,
        absent="When model FLOP/s or the GPU's peak is unknown.",
    ),
    of_job(
        "perfd_hfu_ratio",
        "As perfd_mfu_ratio, but including recomputed forward work.",
        labels=("convention",),
        source=_ANALYSIS,
        absent="When MFU is absent, or recomputation is unknown.",
    ),
    of_job(
        "perfd_mfu_clock_adjusted_ratio",
        "MFU over the peak at the GPUs' actual clock; for diagnosis.",
        labels=("convention",),
        source=_ANALYSIS,
        absent="When MFU is absent, or the clocks are unknown.",
    ),
    of_job(
        "perfd_mfu_upper_ratio",
        "Upper bound of MFU by the activity of the tensor cores.",
        source="NVML's GPM",
        absent="When the GPUs do not report the activity, or products may run without tensor cores (FP32).",
    ),
    of_job(
        "perfd_tensor_active_ratio",
        "Share of time in which the tensor cores are active: an independent check of MFU.",
        source="NVML's GPM, over the newest steady steps",
        absent="When the GPUs do not report it.",
    ),
    of_job(
        "perfd_finding_confidence_ratio",
        "Confidence in a finding about what costs the job time; the summary has the evidence.",
        labels=("kind",),
        source=_ANALYSIS,
        absent="Without a finding of that kind.",
    ),
    of_job(
        "perfd_finding_gain_ratio",
        "Share of a step that the job would gain at most if the cause of a finding were gone.",
        labels=("kind",),
        source=_ANALYSIS,
        absent="Without a finding of that kind, or when its cost is unknown.",
    ),
    of_job(
        "perfd_finding_longer_seconds",
        "For how long steps have been longer than before, for a finding whose evidence is that.",
        labels=("kind",),
        source=_ANALYSIS,
        absent="Without such a finding, or if steps were as long from the start.",
    ),
    of_job(
        "perfd_peak_flops_per_second",
        "Dense peak of one GPU at the job's precision.",
        source="perfd/data/gpu_peaks.yaml and `analysis.gpu_peaks_file`",
        absent="When the GPU's model is not in the table.",
    ),
    of_job(
        "perfd_communication_share_ratio",
        "Share of a step with communication, overlapped with compute or not.",
        labels=("source",),
        source=_ANALYSIS,
        absent=_NO_TIMERS,
    ),
    of_job(
        "perfd_communication_exposed_ratio",
        "Share of a step with exposed communication, the upper bound of what overlap can save.",
        labels=("source",),
        source=_ANALYSIS,
        absent="When no source measures exposed communication.",
    ),
    of_job(
        "perfd_communication_dimension_share_ratio",
        "Share of a step with communication of a parallel dimension, overlapped with compute or not.",
        labels=("dimension", "source"),
        source=_ANALYSIS,
        absent="As perfd_communication_share_ratio, or when the groups are unknown.",
    ),
    of_job(
        "perfd_communication_dimension_wait_ratio",
        "The part of perfd_communication_dimension_share_ratio that waits for other ranks.",
        labels=("dimension", "source"),
        source=_ANALYSIS,
        absent="Without NCCL plugin and capture, or when too few operations could be matched.",
    ),
    of_job(
        "perfd_communication_dimension_exposed_ratio",
        "Share of a step with exposed communication of a parallel dimension.",
        labels=("dimension", "source"),
        source=_ANALYSIS,
        absent="When no timer, schedule or capture measures it; see `missing` in the summary.",
    ),
    of_job(
        "perfd_pipeline_bubble_theory_ratio",
        "Pipeline bubble of the schedule with equal stages.",
        source="parallel layout and batch sizes in the log",
        absent="Without pipeline parallelism, or when sizes are unknown.",
    ),
    of_job(
        "perfd_pipeline_stall_ratio",
        "Measured idle share of the forward-backward window, per stage; without the label, of the job.",
        labels=("stage",),
        source=_ANALYSIS,
        absent="Without forward and backward timers in the log (Megatron-LM: `--timing-log-level 2`).",
    ),
    of_job(
        "perfd_pipeline_stage_compute_seconds",
        "Forward and backward time per step, by stage.",
        labels=("stage",),
        source=_ANALYSIS,
        absent="As perfd_pipeline_stall_ratio.",
    ),
    of_job(
        "perfd_pipeline_excess_ratio",
        "Measured stall minus the schedule's pipeline bubble.",
        source=_ANALYSIS,
        absent="As perfd_pipeline_stall_ratio.",
    ),
    *NCCL_METRICS,
    of_job(
        "perfd_culprit_confidence_ratio",
        "Confidence that a rank is the culprit of a finding, or the first one on a node that is.",
        labels=("kind", "rank"),
        source=_ANALYSIS,
        absent="When the rank is not a culprit.",
    ),
    of_job(
        "perfd_data_share_ratio",
        "Share of a step spent waiting for data loading.",
        source=_ANALYSIS,
        absent=_NO_TIMERS,
    ),
    of_job(
        "perfd_optimizer_share_ratio",
        "Share of a step spent in the optimizer.",
        source=_ANALYSIS,
        absent=_NO_TIMERS,
    ),
    of_job(
        "perfd_memory_used_ratio",
        "Used share of device memory of the fullest GPU.",
        source="NVML, else the log's memory report",
        absent="Without either.",
    ),
    of_job(
        "perfd_goodput_ratio",
        "Share of wall time spent on steps at the steady step time (goodput).",
        source="perfd.analysis, over the newest steps, steady or not",
        absent="Before the job has made enough steps.",
    ),
    of_job(
        "perfd_step_phase_seconds",
        "Median time of a phase timer per step over the newest steps; `stat` is min or max over ranks.",
        labels=("phase", "stat"),
        source=_LOG,
        absent=_NO_TIMERS,
    ),
    of_job(
        "perfd_log_silent_seconds",
        "Time since the newest line of all logs of the job; grows during a hang.",
        source="log collector",
        absent="When no log is read, or the job has ended.",
    ),
    of_job(
        "perfd_idle_seconds",
        "Time since anything showed the job at work: a line of its log, a step, a finished NCCL operation, or"
        " tensor cores active on all of its GPUs.",
        source="log collector, NCCL plugin, NVML",
        absent="When no log is read, or the job has ended.",
    ),
    of_job(
        "perfd_restart_stepless_seconds",
        "Time since the job was restarted; after several starts without a step, since the first of them.",
        source="processes of ranks, launcher or scheduler",
        absent="When it has made a step since, or has ended.",
    ),
    of_job(
        "perfd_first_step_seconds",
        "Longest time from a start of the job to its first step.",
        source="processes of ranks, launcher or scheduler, and steps",
        absent="Before its first step.",
    ),
    of_job(
        "perfd_log_lines_total",
        "Lines read from all logs of the job.",
        source="log collector",
        absent="When no log is read.",
    ),
    of_job(
        "perfd_log_unrecognized_lines_total",
        "Lines that no parser recognized.",
        source="log collector",
        absent="When no log is read.",
    ),
    of_job(
        "perfd_hardware_errors_total",
        "XID events, ECC errors and lost GPUs; `code` is the XID.",
        labels=(*NODE, "gpu", "code"),
        source="NVML events",
        absent="Before the first error.",
    ),
    of_job(
        "perfd_alerts_firing",
        "Alerts of perfd's rule engine that are firing.",
        labels=("alertname",),
        source="perfd.rules",
        absent="When the alert is not firing.",
    ),
    *CAPTURE_METRICS,
)
