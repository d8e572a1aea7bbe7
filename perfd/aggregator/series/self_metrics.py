"""What the aggregator says about itself and about the agents that it sees."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from perfd import __version__
from perfd.aggregator.history import HistoryStore
from perfd.aggregator.series.job_series import Value
from perfd.aggregator.state import AgentState, AggregatorState, NodeState
from perfd.exporters.exporter_runner import ExporterStatus
from perfd.model import Scope


def agent_values(agents: Sequence[AgentState], now_s: float, forgotten_after_s: float) -> list[Value]:
    """One agent per node, the one that was heard of last; none that is long gone."""
    newest: dict[str, AgentState] = {}
    for agent in sorted(agents, key=lambda agent: (agent.stream is not None, agent.received_s)):
        newest[agent.node] = agent
    values: list[Value] = []
    for agent in newest.values():
        if agent.stream is None and now_s - agent.received_s > forgotten_after_s:
            continue
        node = {"node": agent.node}
        values += [
            ("perfd_agent_up", node, float(agent.stream is not None)),
            ("perfd_agent_info", {**node, "version": agent.perfd_version}, 1.0),
            ("perfd_agent_silent_seconds", node, max(0.0, now_s - agent.received_s)),
            ("perfd_agent_clock_offset_seconds", node, agent.clock_offset_s),
            ("perfd_agent_dropped_records_total", node, agent.dropped_records),
            ("perfd_agent_unknown_records_total", node, agent.unknown_records),
        ]
    return values


def node_values(node: NodeState) -> list[Value]:
    """Events and collectors of one node."""
    values: list[Value] = []
    for (job, gpu, code), count in node.hardware_errors.items():
        labels = {"job": job, "node": node.name, "gpu": gpu, "code": code}
        values.append(("perfd_hardware_errors_total", labels, count))
    for health in node.health.values():
        labels = {"node": node.name, "collector": health.collector}
        values.append(("perfd_collector_success", labels, float(health.success)))
        values.append(("perfd_collector_duration_seconds", labels, health.duration_s))
    return values


def server_values(node: NodeState, now_s: float, stale_after_s: float) -> list[Value]:
    """What each serving engine of one node is, as long as there are readings of it."""
    readings = node.readings.get(Scope.SERVER)
    if readings is None or not node.server_infos:
        return []
    fresh = np.isfinite(readings.fresh(now_s, stale_after_s))
    return [
        (
            "perfd_server_info",
            {
                "node": node.name,
                "server": server,
                "engine": info.engine,
                "version": info.version or "",
                "model": info.model or "",
            },
            1.0,
        )
        for server, heard in zip(readings.layout.entities.known, fresh, strict=True)
        if heard.any() and (info := node.server_infos.get(server)) is not None
    ]


def exporter_values(exporters: Sequence[ExporterStatus]) -> list[Value]:
    """What each exporter did, and what waits for it."""
    values: list[Value] = []
    for status in exporters:
        labels = {"exporter": status.name}
        values += [
            ("perfd_exporter_rounds_total", labels, status.rounds),
            ("perfd_exporter_failed_rounds_total", labels, status.failed_rounds),
            ("perfd_exporter_dropped_rounds_total", labels, status.dropped_rounds),
            ("perfd_exporter_queued_rounds", labels, status.queued_rounds),
            ("perfd_exporter_seconds_total", labels, status.seconds),
            ("perfd_exporter_sent_total", labels, status.sent),
            ("perfd_exporter_lost_total", labels, status.lost),
            ("perfd_exporter_retries_total", labels, status.retries),
            ("perfd_exporter_pending", labels, status.pending),
        ]
    return values


def webhook_values(requests: Mapping[str, int], alerts: Mapping[str, int]) -> list[Value]:
    """What became of Alertmanager's webhooks and of the alerts in them."""
    return [
        *(
            ("perfd_webhook_requests_total", {"outcome": name}, float(count))
            for name, count in sorted(requests.items())
        ),
        *(
            ("perfd_webhook_alerts_total", {"outcome": name}, float(count))
            for name, count in sorted(alerts.items())
        ),
    ]


def aggregator_values(
    state: AggregatorState, history: HistoryStore | None, outcomes: Mapping[tuple[str, str, str], int]
) -> list[Value]:
    """Whether everything arrives, what is lost, and what it costs."""
    counters = state.counters
    values: list[Value] = [
        ("perfd_build_info", {"version": __version__}, 1.0),
        ("perfd_agents_connected", {}, state.agents.connected()),
        ("perfd_jobs", {}, len(state.fleet.jobs)),
        ("perfd_batches_total", {}, counters.batches),
        ("perfd_records_total", {}, counters.records),
        ("perfd_samples_total", {}, counters.samples),
        ("perfd_repeated_batches_total", {}, counters.repeated_batches),
        ("perfd_late_batches_total", {}, counters.late_batches),
        ("perfd_lost_batches_total", {}, counters.lost_batches),
        ("perfd_malformed_messages_total", {}, counters.malformed_messages),
        ("perfd_ingest_seconds_total", {}, counters.ingest_s),
        ("perfd_ticks_total", {}, counters.ticks),
        ("perfd_failed_ticks_total", {}, counters.failed_ticks),
        ("perfd_tick_seconds_total", {}, counters.tick_s),
        ("perfd_rule_evaluation_seconds_total", {}, counters.rule_evaluation_s),
    ]
    values += [
        ("perfd_rejected_total", {"bound": bound}, count)
        for bound, count in sorted(counters.rejected.items())
        if count
    ]
    values += [
        (name, {"job": job, "state": outcome}, count)
        for (name, job, outcome), count in sorted(outcomes.items())
    ]
    if history is not None:
        values += [
            ("perfd_history_up", {}, float(history.healthy)),
            ("perfd_history_written_rows_total", {}, history.written_rows),
            ("perfd_history_failed_rows_total", {}, history.failed_rows),
        ]
    return [*values, *_process_values()]


def _process_values() -> list[Value]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return [
        ("process_cpu_seconds_total", {}, usage.ru_utime + usage.ru_stime),
        ("process_resident_memory_bytes", {}, _resident_bytes()),
    ]


def _resident_bytes() -> float | None:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return float(pages * os.sysconf("SC_PAGE_SIZE"))
