"""What the agent says about itself on /metrics."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path

from perfd import __version__
from perfd.agent.collection import TaskState
from perfd.agent.spool import SpoolStats
from perfd.agent.uplink import UplinkState
from perfd.collector import ColumnKind
from perfd.metrics.exposition import MetricFamily, Sample

_GAUGE, _COUNTER = ColumnKind.GAUGE, ColumnKind.COUNTER


def agent_families(
    *, spool: SpoolStats, uplink: UplinkState, last_sequence: int, dropped_records: int
) -> list[MetricFamily]:
    """Whether data flows, and what was lost."""
    return [
        MetricFamily(
            name="perfd_agent_build_info",
            help="Constant 1; the labels say which agent this is.",
            kind=_GAUGE,
            samples=[Sample(value=1, labels={"version": __version__})],
        ),
        _one(
            "perfd_agent_uplink_connected", "1 while the aggregator is connected.", _GAUGE, uplink.connected
        ),
        _one(
            "perfd_agent_uplink_reconnects_total",
            "Connections after the first.",
            _COUNTER,
            max(0, uplink.connections - 1),
        ),
        _one(
            "perfd_agent_uplink_unknown_messages_total",
            "Messages of a newer aggregator that this agent does not understand.",
            _COUNTER,
            uplink.unknown_messages,
        ),
        _one(
            "perfd_agent_batches_sent_total", "Batches sent, repeats included.", _COUNTER, uplink.batches_sent
        ),
        _one("perfd_agent_sequence", "Number of the newest batch.", _GAUGE, last_sequence),
        _one("perfd_agent_sent_sequence", "Number of the newest batch sent.", _GAUGE, uplink.sent_sequence),
        _one(
            "perfd_agent_acknowledged_sequence",
            "Number of the newest batch that the aggregator has.",
            _GAUGE,
            uplink.acknowledged_sequence,
        ),
        _one("perfd_agent_spool_bytes", "Unacknowledged bytes in the spool.", _GAUGE, spool.payload_bytes),
        _one("perfd_agent_spool_batches", "Unacknowledged batches in the spool.", _GAUGE, spool.batches),
        _one("perfd_agent_spool_writable", "0 while the disk does not take batches.", _GAUGE, spool.writable),
        _one(
            "perfd_agent_dropped_batches_total",
            "Batches lost because the spool was full.",
            _COUNTER,
            spool.dropped_batches,
        ),
        _one(
            "perfd_agent_dropped_records_total",
            "Records lost because a queue or the spool was full.",
            _COUNTER,
            dropped_records,
        ),
    ]


def collector_families(states: Sequence[TaskState], now_s: float) -> list[MetricFamily]:
    """How each collector fares."""

    def family(name: str, help_text: str, kind: ColumnKind, values: dict[str, float | None]) -> MetricFamily:
        samples = [
            Sample(value=value, labels={"collector": collector})
            for collector, value in values.items()
            if value is not None
        ]
        return MetricFamily(name=f"perfd_collector_{name}", help=help_text, kind=kind, samples=samples)

    return [
        family(
            "duration_seconds",
            "How long the last run took.",
            _GAUGE,
            {state.collector: state.duration_s for state in states},
        ),
        family(
            "success",
            "1 when the last run succeeded.",
            _GAUGE,
            {state.collector: state.success for state in states},
        ),
        family(
            "last_success_timestamp_seconds",
            "When a run last succeeded.",
            _GAUGE,
            {state.collector: _seconds(state.last_success_unix_ns) for state in states},
        ),
        family(
            "missed_ticks_total",
            "Runs left out because an earlier one took too long.",
            _COUNTER,
            {state.collector: state.missed_ticks for state in states},
        ),
        family(
            "running_seconds",
            "For how long the run in progress has been going on; absent between runs.",
            _GAUGE,
            {
                state.collector: None if state.running_since_s is None else now_s - state.running_since_s
                for state in states
            },
        ),
    ]


def process_families() -> list[MetricFamily]:
    """CPU time and memory of this process, under the names that client libraries use."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    families = [
        _one(
            "process_cpu_seconds_total",
            "Total user and system CPU time spent in seconds.",
            _COUNTER,
            usage.ru_utime + usage.ru_stime,
        )
    ]
    try:
        resident_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return families
    resident_bytes = resident_pages * os.sysconf("SC_PAGE_SIZE")
    families.append(
        _one("process_resident_memory_bytes", "Resident memory size in bytes.", _GAUGE, resident_bytes)
    )
    return families


def _one(name: str, help_text: str, kind: ColumnKind, value: float) -> MetricFamily:
    return MetricFamily(name=name, help=help_text, kind=kind, samples=[Sample(value=float(value), labels={})])


def _seconds(unix_ns: int | None) -> float | None:
    return None if unix_ns is None else unix_ns / 1e9
