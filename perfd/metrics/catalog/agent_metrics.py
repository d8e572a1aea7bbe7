"""What the aggregator exports of agents, and what an agent says of itself on its own page."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.collector import ColumnKind
from perfd.metrics.catalog.metric_info import MetricInfo, metric

_NODE = ("node",)

AGENT_METRICS: Sequence[MetricInfo] = (
    metric(
        "perfd_agent_up",
        "1 while the agent's stream is open, else 0.",
        labels=_NODE,
        source="aggregator",
        absent="It said goodbye when it was stopped, or has been gone for job_forgotten_after_s.",
    ),
    metric(
        "perfd_agent_info",
        "Version of an agent; always 1.",
        labels=(*_NODE, "version"),
        source="the agent's Hello",
    ),
    metric(
        "perfd_server_info",
        "Which engine a server is, and what it serves; always 1.",
        labels=(*_NODE, "server", "engine", "version", "model"),
        source="the server's /metrics, /server_info or /version, its command line or log",
        absent="There is no reading of the server; a label without a value where it does not say it.",
    ),
    metric(
        "perfd_agent_silent_seconds",
        "Time since the agent's newest message.",
        labels=_NODE,
        source="aggregator's monotonic clock",
    ),
    metric(
        "perfd_agent_clock_offset_seconds",
        "How far the node's clock is ahead of the aggregator's; the fastest batch's delay makes it smaller.",
        labels=_NODE,
        source="time of sending and of arrival",
    ),
    metric(
        "perfd_agent_dropped_records_total",
        "Records that the agent gave up because a queue or its spool was full.",
        labels=_NODE,
        source="agent",
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_agent_unknown_records_total",
        "Records of kinds that this aggregator does not know: the agent is newer.",
        labels=_NODE,
        source="aggregator",
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_collector_success",
        "1 when the collector's last run succeeded, else 0.",
        labels=(*_NODE, "collector"),
        source="agent",
        absent="Before its first run, and where the node has nothing for it to read.",
    ),
    metric(
        "perfd_collector_duration_seconds",
        "Time that the collector's last run took.",
        labels=(*_NODE, "collector"),
        source="agent",
        absent="Before its first run.",
    ),
)

_COLLECTOR = ("collector",)
_BEFORE_FIRST = "Before its first run."
_UPLINK, _SPOOL = "the agent's uplink", "the agent's spool"

AGENT_PAGE_METRICS: Sequence[MetricInfo] = (
    metric("perfd_agent_build_info", "Version of the agent; always 1.", labels=("version",), source="agent"),
    metric("perfd_agent_uplink_connected", "1 while the aggregator is connected, else 0.", source=_UPLINK),
    metric(
        "perfd_agent_uplink_reconnects_total",
        "Connections after the first.",
        source=_UPLINK,
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_agent_uplink_unknown_messages_total",
        "Messages of a newer aggregator that this agent does not understand.",
        source=_UPLINK,
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_agent_batches_sent_total",
        "Batches sent, repeats included.",
        source=_UPLINK,
        kind=ColumnKind.COUNTER,
    ),
    metric("perfd_agent_sequence", "Number of the newest batch.", source=_SPOOL),
    metric("perfd_agent_sent_sequence", "Number of the newest batch sent.", source=_UPLINK),
    metric(
        "perfd_agent_acknowledged_sequence",
        "Number of the newest batch that the aggregator has.",
        source=_UPLINK,
    ),
    metric("perfd_agent_spool_bytes", "Unacknowledged bytes in the spool.", source=_SPOOL),
    metric("perfd_agent_spool_batches", "Unacknowledged batches in the spool.", source=_SPOOL),
    metric("perfd_agent_spool_writable", "0 while the disk does not take batches, else 1.", source=_SPOOL),
    metric(
        "perfd_agent_dropped_batches_total",
        "Batches lost because the spool was full.",
        source=_SPOOL,
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_agent_dropped_records_total",
        "Records lost because a queue or the spool was full.",
        source="agent",
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_collector_duration_seconds",
        "Time that the last run took.",
        labels=_COLLECTOR,
        source="the agent's runner",
        absent=_BEFORE_FIRST,
    ),
    metric(
        "perfd_collector_success",
        "1 when the last run succeeded, else 0.",
        labels=_COLLECTOR,
        source="the agent's runner",
        absent="Before its first run, and where the node has nothing for it to read.",
    ),
    metric(
        "perfd_collector_last_success_timestamp_seconds",
        "When a run last succeeded, in seconds since the epoch.",
        labels=_COLLECTOR,
        source="the agent's runner",
        absent="Before its first success.",
    ),
    metric(
        "perfd_collector_missed_ticks_total",
        "Runs left out because an earlier one took too long.",
        labels=_COLLECTOR,
        source="the agent's runner",
        kind=ColumnKind.COUNTER,
    ),
    metric(
        "perfd_collector_running_seconds",
        "For how long the run in progress has been going on.",
        labels=_COLLECTOR,
        source="the agent's runner",
        absent="Between runs.",
    ),
)
"""What an agent says of itself on its own page, beside its raw columns."""
