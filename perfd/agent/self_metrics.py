"""The agent's own metrics on /metrics, besides those of every process."""

from __future__ import annotations

from collections.abc import Sequence

from perfd import __version__
from perfd.agent.collection import TaskState
from perfd.agent.spool import SpoolStats
from perfd.agent.uplink import UplinkState
from perfd.metrics.catalog import Value


def agent_values(
    *, spool: SpoolStats, uplink: UplinkState, last_sequence: int, dropped_records: int
) -> list[Value]:
    """Whether data flows, and what was lost."""
    return [
        ("perfd_agent_build_info", {"version": __version__}, 1.0),
        ("perfd_agent_uplink_connected", {}, uplink.connected),
        ("perfd_agent_uplink_reconnects_total", {}, max(0, uplink.connections - 1)),
        ("perfd_agent_uplink_unknown_messages_total", {}, uplink.unknown_messages),
        ("perfd_agent_batches_sent_total", {}, uplink.batches_sent),
        ("perfd_agent_batches_sent_again_total", {}, uplink.batches_sent_again),
        ("perfd_agent_sequence", {}, last_sequence),
        ("perfd_agent_sent_sequence", {}, uplink.sent_sequence),
        ("perfd_agent_acknowledged_sequence", {}, uplink.acknowledged_sequence),
        ("perfd_agent_spool_bytes", {}, spool.payload_bytes),
        ("perfd_agent_spool_batches", {}, spool.batches),
        ("perfd_agent_spool_writable", {}, spool.writable),
        ("perfd_agent_dropped_batches_total", {}, spool.dropped_batches),
        ("perfd_agent_dropped_records_total", {}, dropped_records),
    ]


def collector_values(states: Sequence[TaskState], now_s: float) -> list[Value]:
    """The state of each collector."""
    values: list[Value] = []
    for state in states:
        labels = {"collector": state.collector}
        succeeded_ns, running_s = state.last_success_unix_ns, state.running_since_s
        values += [
            ("perfd_collector_duration_seconds", labels, state.duration_s),
            ("perfd_collector_success", labels, state.success),
            (
                "perfd_collector_last_success_timestamp_seconds",
                labels,
                None if succeeded_ns is None else succeeded_ns / 1e9,
            ),
            ("perfd_collector_missed_ticks_total", labels, state.missed_ticks),
            ("perfd_collector_running_seconds", labels, None if running_s is None else now_s - running_s),
        ]
    return values
