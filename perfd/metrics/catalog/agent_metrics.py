"""Metrics about agents: on the aggregator's page, and on an agent's own page."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.metrics.catalog.metric_info import MetricInfo, metric

_NODE = ("node",)

AGENT_METRICS: Sequence[MetricInfo] = (
    metric(
        "perfd_agent_up",
        "1 while the agent's stream is open, else 0.",
        labels=_NODE,
        source="aggregator",
        absent="After the agent was stopped, or has been gone for `job_forgotten_after_s`.",
    ),
    metric(
        "perfd_agent_info",
        "Version of an agent; always 1.",
        labels=(*_NODE, "version"),
        source="the agent's Hello",
    ),
    metric(
        "perfd_server_info",
        "Engine, version and model of a server; always 1.",
        labels=(*_NODE, "server", "engine", "version", "model"),
        source="the server's /metrics, /server_info or /version, its command line or log",
        absent="Without samples of the server; unknown labels are empty.",
    ),
    metric(
        "perfd_agent_silent_seconds",
        "Time since the agent's newest message.",
        labels=_NODE,
        source="aggregator's monotonic clock",
    ),
    metric(
        "perfd_agent_clock_offset_seconds",
        "How far the node's clock is ahead of the aggregator's, less the network delay of the fastest batch.",
        labels=_NODE,
        source="times of sending and arrival",
    ),
    metric(
        "perfd_agent_dropped_records_total",
        "Records that the agent dropped because a queue or its spool was full.",
        labels=_NODE,
        source="agent",
    ),
    metric(
        "perfd_agent_unknown_records_total",
        "Records of unknown kinds, from an agent newer than the aggregator.",
        labels=_NODE,
        source="aggregator",
    ),
    metric(
        "perfd_collector_success",
        "1 when the collector's last run succeeded, else 0.",
        labels=(*_NODE, "collector"),
        source="agent",
        absent="Before its first run, and on nodes without its data source.",
    ),
    metric(
        "perfd_collector_duration_seconds",
        "Duration of the collector's last run.",
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
    metric("perfd_agent_uplink_reconnects_total", "Connections after the first.", source=_UPLINK),
    metric(
        "perfd_agent_uplink_unknown_messages_total",
        "Messages of unknown kinds, from an aggregator newer than this agent.",
        source=_UPLINK,
    ),
    metric("perfd_agent_batches_sent_total", "Batches sent, including repeats.", source=_UPLINK),
    metric(
        "perfd_agent_batches_sent_again_total",
        "Batches that this process had sent before: not acknowledged, or not stored in time.",
        source=_UPLINK,
    ),
    metric("perfd_agent_sequence", "Number of the newest batch.", source=_SPOOL),
    metric("perfd_agent_sent_sequence", "Number of the newest batch sent.", source=_UPLINK),
    metric(
        "perfd_agent_acknowledged_sequence",
        "Number of the newest batch stored by the aggregator.",
        source=_UPLINK,
    ),
    metric("perfd_agent_spool_bytes", "Unacknowledged bytes in the spool.", source=_SPOOL),
    metric("perfd_agent_spool_batches", "Unacknowledged batches in the spool.", source=_SPOOL),
    metric("perfd_agent_spool_writable", "0 while batches cannot be written to disk, else 1.", source=_SPOOL),
    metric("perfd_agent_dropped_batches_total", "Batches lost because the spool was full.", source=_SPOOL),
    metric(
        "perfd_agent_dropped_records_total",
        "Records lost because a queue or the spool was full.",
        source="agent",
    ),
    metric(
        "perfd_collector_duration_seconds",
        "Duration of the last run.",
        labels=_COLLECTOR,
        source="the agent's runner",
        absent=_BEFORE_FIRST,
    ),
    metric(
        "perfd_collector_success",
        "1 when the last run succeeded, else 0.",
        labels=_COLLECTOR,
        source="the agent's runner",
        absent="Before its first run, and on nodes without its data source.",
    ),
    metric(
        "perfd_collector_last_success_timestamp_seconds",
        "Time of the last successful run, in seconds since the epoch.",
        labels=_COLLECTOR,
        source="the agent's runner",
        absent="Before its first success.",
    ),
    metric(
        "perfd_collector_missed_ticks_total",
        "Runs skipped because an earlier one took too long.",
        labels=_COLLECTOR,
        source="the agent's runner",
    ),
    metric(
        "perfd_collector_running_seconds",
        "Duration so far of the current run.",
        labels=_COLLECTOR,
        source="the agent's runner",
        absent="Between runs.",
    ),
)
"""Metrics of an agent on its own page, besides the collectors' columns."""
