"""Every metric that perfd exports: name, unit, labels, source, and when it is absent.

docs/metrics.md is made of this and of the columns of the collectors; a test
proves that nothing is exported that is not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfd.collector import Column, ColumnKind
from perfd.exposition import exported_name
from perfd.model import Scope

_GAUGE, _COUNTER = ColumnKind.GAUGE, ColumnKind.COUNTER
_NEVER = "Never."
_NO_EXPORTER = "Without that exporter in `exporters`."


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricInfo:
    """One exported metric."""

    name: str
    kind: ColumnKind
    unit: str
    """A base unit, or `1` for numbers without one."""
    labels: Sequence[str]
    """The labels that it may have; one without a value is left out."""
    help: str
    source: str
    absent: str


_RAW_LABELS: Mapping[Scope, Sequence[str]] = {
    Scope.GPU: ("job", "rank", "node", "gpu"),
    Scope.NODE: ("node",),
    Scope.NIC: ("node", "device"),
    Scope.DISK: ("node", "device"),
    Scope.RANK: ("job", "rank", "node"),
    Scope.SERVER: ("node", "server"),
}
_UNIT_ENDINGS = (
    ("bytes_per_second", "bytes per second"),
    ("seconds", "seconds"),
    ("bytes", "bytes"),
    ("ratio", "ratio, 0 to 1"),
    ("watts", "watts"),
    ("joules", "joules"),
    ("hertz", "hertz"),
    ("celsius", "degrees Celsius"),
    ("per_second", "per second"),
)


def raw_metric(column: Column) -> MetricInfo:
    """How a column of a collector is exported, by the agent and by the aggregator alike."""
    name = exported_name(column.scope, column.name, column.kind)
    return MetricInfo(
        name=name,
        kind=column.kind,
        unit=_unit(name),
        labels=_RAW_LABELS[column.scope],
        help=column.help,
        source=column.source,
        absent=column.absent,
    )


def _unit(name: str) -> str:
    base = name.removesuffix("_total")
    return next((unit for ending, unit in _UNIT_ENDINGS if base.endswith("_" + ending)), "1")


def _metric(
    name: str,
    help_text: str,
    *,
    labels: Sequence[str] = (),
    source: str,
    absent: str = _NEVER,
    kind: ColumnKind = _GAUGE,
) -> MetricInfo:
    return MetricInfo(
        name=name, kind=kind, unit=_unit(name), labels=labels, help=help_text, source=source, absent=absent
    )


_JOB = ("job",)
_NO_STEPS = "Before the first steady step, or without a log."
_NO_TIMERS = "The log has no phase timers (Megatron-LM: `--timing-log-level 1` or 2)."
_LOG = "training log"
_PLUGIN = "perfd's NCCL plugin"
_NO_PLUGIN = "Without the plugin on all ranks, or with an NCCL before 2.27, which tells no GPU time."
_ANALYSIS = "perfd.analysis, over the newest steady steps (`analysis.window_steps`)"

JOB_METRICS: Sequence[MetricInfo] = (
    _metric(
        "perfd_job_info",
        "What a job said about itself; always 1.",
        labels=(*_JOB, "framework", "framework_version", "precision", "tp", "pp", "dp", "cp", "ep", "vp"),
        source=_LOG,
        absent="Before the job has described itself.",
    ),
    _metric("perfd_job_ended", "1 after the job has ended, else 0.", labels=_JOB, source="agent, log"),
    _metric(
        "perfd_job_attempt",
        "Number of the current start of the job, counted from 1; it rises when steps go back.",
        labels=_JOB,
        source=_LOG,
    ),
    _metric(
        "perfd_job_ranks",
        "Ranks of the job.",
        labels=_JOB,
        source="training log, else placements of ranks",
        absent="Neither told it.",
    ),
    _metric("perfd_job_nodes", "Nodes that speak of the job.", labels=_JOB, source="agents"),
    _metric("perfd_step", "Newest step that the log told of.", labels=_JOB, source=_LOG, absent=_NO_STEPS),
    _metric(
        "perfd_train_steps",
        "Step at which the job will end.",
        labels=_JOB,
        source=_LOG,
        absent="The job did not say it.",
    ),
    _metric("perfd_loss", "Newest loss.", labels=_JOB, source=_LOG, absent="The log has none, or it is NaN."),
    _metric(
        "perfd_step_time_seconds",
        "Median time of a step over the newest steady steps.",
        labels=_JOB,
        source=_ANALYSIS,
        absent=_NO_STEPS,
    ),
    _metric(
        "perfd_step_time_last_seconds",
        "Time of the newest step, steady or not.",
        labels=_JOB,
        source=_LOG,
        absent="The newest line has no time.",
    ),
    _metric(
        "perfd_step_time_p95_seconds",
        "95th percentile of the time of a step over the newest steady steps.",
        labels=_JOB,
        source=_ANALYSIS,
        absent=_NO_STEPS,
    ),
    _metric(
        "perfd_step_time_baseline_seconds",
        "Median time of all steady steps of this attempt before the newest ones.",
        labels=_JOB,
        source="perfd.analysis",
        absent="With fewer than 20 such steps.",
    ),
    _metric(
        "perfd_step_time_regression_ratio",
        "Median time of the newest steady steps over the baseline, minus 1: 0.1 is 10 % slower.",
        labels=_JOB,
        source="perfd.analysis",
        absent="Without a baseline.",
    ),
    _metric(
        "perfd_step_time_jitter_ratio",
        "How far step times spread around their median.",
        labels=_JOB,
        source=_ANALYSIS,
        absent=_NO_STEPS,
    ),
    _metric(
        "perfd_tokens_per_second",
        "Tokens that the whole job trains on.",
        labels=_JOB,
        source=_ANALYSIS,
        absent="Batch size or sequence length is unknown.",
    ),
    _metric(
        "perfd_samples_per_second",
        "Samples that the whole job trains on.",
        labels=_JOB,
        source=_ANALYSIS,
        absent="The batch size is unknown.",
    ),
    _metric(
        "perfd_model_flops_per_second_per_gpu",
        "Model floating-point operations per second and GPU, without recomputation.",
        labels=(*_JOB, "convention"),
        source="perfd.analysis from the model's shape, else the log's own figure",
        absent="Neither the shape nor a figure is known.",
    ),
    _metric(
        "perfd_mfu_ratio",
        "Model FLOP/s over the dense peak of the GPU (PaLM, arXiv:2204.02311, appendix B).",
        labels=(*_JOB, "convention"),
        source=_ANALYSIS,
        absent="The model FLOP/s or the GPU's peak is unknown.",
    ),
    _metric(
        "perfd_hfu_ratio",
        "As perfd_mfu_ratio, with recomputed forward work counted too.",
        labels=(*_JOB, "convention"),
        source=_ANALYSIS,
        absent="MFU is, or what is recomputed is unknown.",
    ),
    _metric(
        "perfd_mfu_clock_adjusted_ratio",
        "MFU against the peak at the clock that the GPUs ran at; a diagnosis, not an MFU.",
        labels=(*_JOB, "convention"),
        source=_ANALYSIS,
        absent="MFU is, or the clocks are unknown.",
    ),
    _metric(
        "perfd_mfu_upper_ratio",
        "What MFU can be at most, by the activity of the tensor cores.",
        labels=_JOB,
        source="NVML's GPM",
        absent="MFU is known, or the GPUs do not report the activity.",
    ),
    _metric(
        "perfd_tensor_active_ratio",
        "Share of time that the tensor cores of the job's GPUs are active: an independent check of MFU.",
        labels=_JOB,
        source="NVML's GPM, over the newest steady steps",
        absent="The GPUs do not report it.",
    ),
    _metric(
        "perfd_finding_confidence_ratio",
        "What costs the job time, and how sure that is; the summary holds the evidence.",
        labels=(*_JOB, "kind"),
        source=_ANALYSIS,
        absent="There is no finding of that kind.",
    ),
    _metric(
        "perfd_peak_flops_per_second",
        "Dense peak of one GPU at the job's precision.",
        labels=_JOB,
        source="perfd/data/gpu_peaks.yaml and `analysis.gpu_peaks_file`",
        absent="The GPU's model is not in the table.",
    ),
    _metric(
        "perfd_communication_share_ratio",
        "Share of a step that communication occupies, hidden behind compute or not.",
        labels=(*_JOB, "source"),
        source=_ANALYSIS,
        absent=_NO_TIMERS,
    ),
    _metric(
        "perfd_communication_exposed_ratio",
        "Share of a step in which communication runs and compute does not: at most this can be won back.",
        labels=(*_JOB, "source"),
        source=_ANALYSIS,
        absent="No source tells exposed communication.",
    ),
    _metric(
        "perfd_pipeline_bubble_theory_ratio",
        "Idle share of a pipeline schedule with equal stages.",
        labels=_JOB,
        source="parallel layout and batch sizes in the log",
        absent="The job has no pipeline, or sizes are unknown.",
    ),
    _metric(
        "perfd_pipeline_stall_ratio",
        "Measured idle share of the forward-backward window: of a stage, or without the label of the job.",
        labels=(*_JOB, "stage"),
        source=_ANALYSIS,
        absent="The log has no forward and backward timers (Megatron-LM: `--timing-log-level 2`).",
    ),
    _metric(
        "perfd_pipeline_stage_compute_seconds",
        "Forward and backward time of a stage per step.",
        labels=(*_JOB, "stage"),
        source=_ANALYSIS,
        absent="As perfd_pipeline_stall_ratio.",
    ),
    _metric(
        "perfd_pipeline_excess_ratio",
        "Measured stall beyond what the schedule must have.",
        labels=_JOB,
        source=_ANALYSIS,
        absent="As perfd_pipeline_stall_ratio.",
    ),
    _metric(
        "perfd_nccl_share_ratio",
        "Share of time with an NCCL kernel on the GPU, waiting and hidden parts included; mean over ranks.",
        labels=_JOB,
        source=_PLUGIN,
        absent=_NO_PLUGIN,
    ),
    _metric(
        "perfd_nccl_transfer_ratio",
        "The part of perfd_nccl_share_ratio that moves data.",
        labels=_JOB,
        source=_PLUGIN,
        absent="As perfd_nccl_share_ratio, or a rank has fewer than 20 matched operations.",
    ),
    _metric(
        "perfd_nccl_wait_ratio",
        "The part of perfd_nccl_share_ratio that waits for other ranks.",
        labels=_JOB,
        source=_PLUGIN,
        absent="As perfd_nccl_transfer_ratio.",
    ),
    _metric(
        "perfd_nccl_missing_ranks",
        "Ranks of the job without NCCL timings, although others have them.",
        labels=_JOB,
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="No rank has NCCL timings.",
    ),
    _metric(
        "perfd_nccl_bus_bytes_per_second",
        "Bus bandwidth of transfers (nccl-tests' convention), by dimension and operation; the median.",
        labels=(*_JOB, "group", "operation"),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="No message of 64 KiB or more, or its size is unknown.",
    ),
    _metric(
        "perfd_nccl_expected_bus_bytes_per_second",
        "Bus bandwidth that links allow by the ring formula, of the dimension's busiest communicator.",
        labels=(*_JOB, "group", "operation"),
        source="perfd.analysis: NVLink by the GPU's model, the network by its ports or as it was configured",
        absent="It is not known where the ranks are, or what joins them.",
    ),
    _metric(
        "perfd_nccl_transfer_seconds",
        "Median transfer of an operation, waiting taken off, by dimension and operation.",
        labels=(*_JOB, "group", "operation"),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="No operation could be matched over all ranks.",
    ),
    _metric(
        "perfd_nccl_group_share_ratio",
        "Share of time that a rank of these groups is in these kernels, waiting included; the mean.",
        labels=(*_JOB, "group", "operation"),
        source="perfd's NCCL plugin",
        absent="As perfd_nccl_share_ratio.",
    ),
    _metric(
        "perfd_nccl_group_wait_ratio",
        "Share of the time in these kernels that is waiting for other ranks.",
        labels=(*_JOB, "group", "operation"),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="As perfd_nccl_transfer_seconds.",
    ),
    _metric(
        "perfd_link_slowdown_ratio",
        "How many times as long as they could a group's transfers take; of the 16 costliest groups.",
        labels=(*_JOB, "group", "operation", "communicator"),
        source="perfd.analysis, by the group's own earlier pace, its sisters, or the links of a node",
        absent="No group is slow.",
    ),
    _metric(
        "perfd_rank_wait_ratio",
        "Share of time that a rank waits for others in NCCL's kernels.",
        labels=(*_JOB, "rank"),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="Fewer than 20 matched operations; of more than 1,024 ranks, all but those at either end.",
    ),
    _metric(
        "perfd_wait_caused_ratio",
        "What the peers of a rank lose by it at least, by all time; peers are ranks of its stage.",
        labels=(*_JOB, "rank"),
        source="perfd's NCCL plugin or NCCL's Inspector",
        absent="As perfd_rank_wait_ratio, or a rank of the stage is missing, or the layout is unknown.",
    ),
    _metric(
        "perfd_rank_slowdown_ratio",
        "A rank's time by that of its peers: compute by timers, else time not waited; 1.2 is 20 % slower.",
        labels=(*_JOB, "rank"),
        source="timers by rank, else perfd's NCCL plugin",
        absent="Neither tells of all peers.",
    ),
    _metric(
        "perfd_culprit_confidence_ratio",
        "Ranks that a finding blames, and how sure that is.",
        labels=(*_JOB, "kind", "rank"),
        source=_ANALYSIS,
        absent="The rank is not blamed.",
    ),
    _metric(
        "perfd_data_share_ratio",
        "Share of a step spent waiting for input.",
        labels=_JOB,
        source=_ANALYSIS,
        absent=_NO_TIMERS,
    ),
    _metric(
        "perfd_optimizer_share_ratio",
        "Share of a step spent in the optimizer.",
        labels=_JOB,
        source=_ANALYSIS,
        absent=_NO_TIMERS,
    ),
    _metric(
        "perfd_memory_used_ratio",
        "Device memory in use over its size, of the fullest GPU.",
        labels=_JOB,
        source="NVML, else the log's memory report",
        absent="Neither is there.",
    ),
    _metric(
        "perfd_goodput_ratio",
        "Share of wall time that made steps at their steady pace.",
        labels=_JOB,
        source="perfd.analysis, over the newest steps, steady or not",
        absent="The job has not made enough steps.",
    ),
    _metric(
        "perfd_step_phase_seconds",
        "Median time of a phase timer per step over the newest steps; `stat` is min or max over ranks.",
        labels=(*_JOB, "phase", "stat"),
        source=_LOG,
        absent=_NO_TIMERS,
    ),
    _metric(
        "perfd_log_silent_seconds",
        "How long no log of the job has had a new line: a hang, from outside.",
        labels=_JOB,
        source="log collector",
        absent="No log is read, or the job has ended.",
    ),
    _metric(
        "perfd_log_lines_total",
        "Lines read of all logs of the job.",
        labels=_JOB,
        source="log collector",
        absent="No log is read.",
        kind=_COUNTER,
    ),
    _metric(
        "perfd_log_unrecognised_lines_total",
        "Lines that no parser knew.",
        labels=_JOB,
        source="log collector",
        absent="No log is read.",
        kind=_COUNTER,
    ),
    _metric(
        "perfd_hardware_errors_total",
        "XID events, ECC errors and lost GPUs; `code` is the XID.",
        labels=(*_JOB, "node", "gpu", "code"),
        source="NVML events",
        absent="Before the first.",
        kind=_COUNTER,
    ),
    _metric(
        "perfd_alerts_firing",
        "Alerts of perfd's own engine that fire now.",
        labels=(*_JOB, "alertname"),
        source="perfd.rules",
        absent="The alert does not fire.",
    ),
    _metric(
        "perfd_captures",
        "Remembered captures by outcome as a whole; `open` while a rank has none.",
        labels=(*_JOB, "state"),
        source="perfd.capture",
        absent="There was no capture.",
    ),
    _metric(
        "perfd_capture_ranks",
        "Ranks of remembered captures by outcome.",
        labels=(*_JOB, "state"),
        source="perfd.capture",
        absent="There was no capture.",
    ),
)

_NODE = ("node",)

AGENT_METRICS: Sequence[MetricInfo] = (
    _metric(
        "perfd_agent_up",
        "1 while the agent's stream is open, else 0.",
        labels=_NODE,
        source="aggregator",
        absent="It has been gone for job_forgotten_after_s.",
    ),
    _metric(
        "perfd_agent_info",
        "Version of an agent; always 1.",
        labels=(*_NODE, "version"),
        source="the agent's Hello",
    ),
    _metric(
        "perfd_server_info",
        "Which engine a server is, and what it serves; always 1.",
        labels=(*_NODE, "server", "engine", "version", "model"),
        source="the server's /metrics, /server_info or /version, its command line or log",
        absent="There is no reading of the server; a label without a value where it does not say it.",
    ),
    _metric(
        "perfd_agent_silent_seconds",
        "Time since the agent's newest message.",
        labels=_NODE,
        source="aggregator's monotonic clock",
    ),
    _metric(
        "perfd_agent_clock_offset_seconds",
        "How far the node's clock is ahead of the aggregator's; the fastest batch's delay makes it smaller.",
        labels=_NODE,
        source="time of sending and of arrival",
    ),
    _metric(
        "perfd_agent_dropped_records_total",
        "Records that the agent gave up because a queue or its spool was full.",
        labels=_NODE,
        source="agent",
        kind=_COUNTER,
    ),
    _metric(
        "perfd_agent_unknown_records_total",
        "Records of kinds that this aggregator does not know: the agent is newer.",
        labels=_NODE,
        source="aggregator",
        kind=_COUNTER,
    ),
    _metric(
        "perfd_collector_success",
        "1 when the collector's last run succeeded, else 0.",
        labels=(*_NODE, "collector"),
        source="agent",
        absent="Before its first run, and where the node has nothing for it to read.",
    ),
    _metric(
        "perfd_collector_duration_seconds",
        "Time that the collector's last run took.",
        labels=(*_NODE, "collector"),
        source="agent",
        absent="Before its first run.",
    ),
)

_SELF = "aggregator"

AGGREGATOR_METRICS: Sequence[MetricInfo] = (
    _metric("perfd_build_info", "Version of the aggregator; always 1.", labels=("version",), source=_SELF),
    _metric("perfd_agents_connected", "Agents with an open stream.", source=_SELF),
    _metric("perfd_jobs", "Jobs in memory.", source=_SELF),
    _metric("perfd_batches_total", "Batches taken.", source=_SELF, kind=_COUNTER),
    _metric("perfd_records_total", "Records taken.", source=_SELF, kind=_COUNTER),
    _metric("perfd_samples_total", "Values in tables of samples taken.", source=_SELF, kind=_COUNTER),
    _metric("perfd_repeated_batches_total", "Batches that were there already.", source=_SELF, kind=_COUNTER),
    _metric(
        "perfd_late_batches_total",
        "Batches that filled a gap after it was counted as lost.",
        source=_SELF,
        kind=_COUNTER,
    ),
    _metric(
        "perfd_lost_batches_total",
        "Gaps in agents' sequences; what is in perfd_late_batches_total came after all.",
        source=_SELF,
        kind=_COUNTER,
    ),
    _metric(
        "perfd_malformed_messages_total",
        "Messages that could not be understood; their streams were closed.",
        source=_SELF,
        kind=_COUNTER,
    ),
    _metric(
        "perfd_rejected_total",
        "Things refused because a bound of the aggregator's state was reached.",
        labels=("bound",),
        source=_SELF,
        absent="Nothing was refused by that bound.",
        kind=_COUNTER,
    ),
    _metric(
        "perfd_webhook_requests_total",
        "Requests of Alertmanagers to the webhook: accepted, unauthorized, malformed, unavailable, disabled.",
        labels=("outcome",),
        source=_SELF,
        absent="None had that outcome.",
        kind=_COUNTER,
    ),
    _metric(
        "perfd_webhook_alerts_total",
        "Alerts in those webhooks: started, refused, repeated, resolved, no_capture, unknown_job.",
        labels=("outcome",),
        source=_SELF,
        absent="None had that outcome.",
        kind=_COUNTER,
    ),
    _metric("perfd_ingest_seconds_total", "Time spent applying batches.", source=_SELF, kind=_COUNTER),
    _metric("perfd_ticks_total", "Rounds of analysis and rules.", source=_SELF, kind=_COUNTER),
    _metric("perfd_failed_ticks_total", "Rounds that broke off.", source=_SELF, kind=_COUNTER),
    _metric("perfd_tick_seconds_total", "Time spent in those rounds.", source=_SELF, kind=_COUNTER),
    _metric("perfd_rule_evaluation_seconds_total", "Time spent on rules.", source=_SELF, kind=_COUNTER),
    _metric(
        "perfd_history_up",
        "1 while history can be written, else 0.",
        source=_SELF,
        absent="Without `history.path`.",
    ),
    _metric(
        "perfd_history_written_rows_total",
        "Rows written to history.",
        source=_SELF,
        absent="Without `history.path`.",
        kind=_COUNTER,
    ),
    _metric(
        "perfd_history_failed_rows_total",
        "Rows that could not be written to history.",
        source=_SELF,
        absent="Without `history.path`.",
        kind=_COUNTER,
    ),
    _metric(
        "perfd_exporter_rounds_total",
        "Rounds that an exporter took.",
        labels=("exporter",),
        source=_SELF,
        absent=_NO_EXPORTER,
        kind=_COUNTER,
    ),
    _metric(
        "perfd_exporter_failed_rounds_total",
        "Of them, those that raised an error.",
        labels=("exporter",),
        source=_SELF,
        absent=_NO_EXPORTER,
        kind=_COUNTER,
    ),
    _metric(
        "perfd_exporter_dropped_rounds_total",
        "Rounds dropped because the exporter was too slow.",
        labels=("exporter",),
        source=_SELF,
        absent=_NO_EXPORTER,
        kind=_COUNTER,
    ),
    _metric(
        "perfd_exporter_queued_rounds",
        "Rounds that wait for the exporter.",
        labels=("exporter",),
        source=_SELF,
        absent=_NO_EXPORTER,
    ),
    _metric(
        "perfd_exporter_seconds_total",
        "Time that the exporter's thread spent on rounds.",
        labels=("exporter",),
        source=_SELF,
        absent=_NO_EXPORTER,
        kind=_COUNTER,
    ),
    _metric(
        "perfd_exporter_sent_total",
        "Samples, alerts, rows or lines that the other side took.",
        labels=("exporter",),
        source=_SELF,
        absent=_NO_EXPORTER,
        kind=_COUNTER,
    ),
    _metric(
        "perfd_exporter_lost_total",
        "Samples, alerts, rows or lines that were refused or given up.",
        labels=("exporter",),
        source=_SELF,
        absent=_NO_EXPORTER,
        kind=_COUNTER,
    ),
    _metric(
        "perfd_exporter_retries_total",
        "Attempts at delivery that failed and are made again.",
        labels=("exporter",),
        source=_SELF,
        absent=_NO_EXPORTER,
        kind=_COUNTER,
    ),
    _metric(
        "perfd_exporter_pending",
        "Samples, alerts or rows that wait for the other side.",
        labels=("exporter",),
        source=_SELF,
        absent=_NO_EXPORTER,
    ),
    _metric("process_cpu_seconds_total", "CPU time of the aggregator.", source="kernel", kind=_COUNTER),
    _metric("process_resident_memory_bytes", "Resident memory of the aggregator.", source="kernel"),
)

_COLLECTOR = ("collector",)
_BEFORE_FIRST = "Before its first run."
_UPLINK, _SPOOL = "the agent's uplink", "the agent's spool"

AGENT_PAGE_METRICS: Sequence[MetricInfo] = (
    _metric("perfd_agent_build_info", "Version of the agent; always 1.", labels=("version",), source="agent"),
    _metric("perfd_agent_uplink_connected", "1 while the aggregator is connected, else 0.", source=_UPLINK),
    _metric(
        "perfd_agent_uplink_reconnects_total", "Connections after the first.", source=_UPLINK, kind=_COUNTER
    ),
    _metric(
        "perfd_agent_uplink_unknown_messages_total",
        "Messages of a newer aggregator that this agent does not understand.",
        source=_UPLINK,
        kind=_COUNTER,
    ),
    _metric(
        "perfd_agent_batches_sent_total", "Batches sent, repeats included.", source=_UPLINK, kind=_COUNTER
    ),
    _metric("perfd_agent_sequence", "Number of the newest batch.", source=_SPOOL),
    _metric("perfd_agent_sent_sequence", "Number of the newest batch sent.", source=_UPLINK),
    _metric(
        "perfd_agent_acknowledged_sequence",
        "Number of the newest batch that the aggregator has.",
        source=_UPLINK,
    ),
    _metric("perfd_agent_spool_bytes", "Unacknowledged bytes in the spool.", source=_SPOOL),
    _metric("perfd_agent_spool_batches", "Unacknowledged batches in the spool.", source=_SPOOL),
    _metric("perfd_agent_spool_writable", "0 while the disk does not take batches, else 1.", source=_SPOOL),
    _metric(
        "perfd_agent_dropped_batches_total",
        "Batches lost because the spool was full.",
        source=_SPOOL,
        kind=_COUNTER,
    ),
    _metric(
        "perfd_agent_dropped_records_total",
        "Records lost because a queue or the spool was full.",
        source="agent",
        kind=_COUNTER,
    ),
    _metric(
        "perfd_collector_duration_seconds",
        "Time that the last run took.",
        labels=_COLLECTOR,
        source="the agent's runner",
        absent=_BEFORE_FIRST,
    ),
    _metric(
        "perfd_collector_success",
        "1 when the last run succeeded, else 0.",
        labels=_COLLECTOR,
        source="the agent's runner",
        absent="Before its first run, and where the node has nothing for it to read.",
    ),
    _metric(
        "perfd_collector_last_success_timestamp_seconds",
        "When a run last succeeded, in seconds since the epoch.",
        labels=_COLLECTOR,
        source="the agent's runner",
        absent="Before its first success.",
    ),
    _metric(
        "perfd_collector_missed_ticks_total",
        "Runs left out because an earlier one took too long.",
        labels=_COLLECTOR,
        source="the agent's runner",
        kind=_COUNTER,
    ),
    _metric(
        "perfd_collector_running_seconds",
        "For how long the run in progress has been going on.",
        labels=_COLLECTOR,
        source="the agent's runner",
        absent="Between runs.",
    ),
    _metric("process_cpu_seconds_total", "CPU time of the agent.", source="kernel", kind=_COUNTER),
    _metric("process_resident_memory_bytes", "Resident memory of the agent.", source="kernel"),
)
"""What an agent says of itself on its own page, beside its raw columns."""

METRICS: Mapping[str, MetricInfo] = {
    metric.name: metric for metric in (*JOB_METRICS, *AGENT_METRICS, *AGGREGATOR_METRICS)
}
"""Everything on the aggregator's page but raw columns and what rules record, by name."""
