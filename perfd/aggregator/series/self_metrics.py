"""What the aggregator exports of itself and of the agents that it sees."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
from prometheus_client import CollectorRegistry

from perfd import __version__
from perfd.aggregator.captures import CaptureService
from perfd.aggregator.failures import Failures
from perfd.aggregator.history import HistoryStore
from perfd.aggregator.jobs import JobRegistry
from perfd.aggregator.limits import NatsProgress
from perfd.aggregator.nodes import NodeMemory
from perfd.aggregator.partition import Partition
from perfd.aggregator.state import AgentState, AggregatorState, NodeState
from perfd.aggregator.web_api import Webhook
from perfd.exporters.exporter_registry import ExporterRegistry
from perfd.exporters.exporter_runner import ExporterStatus
from perfd.metrics.catalog import METRICS, Value, families
from perfd.metrics.exposition import process_registry
from perfd.metrics.series import SeriesKey
from perfd.model import Scope
from perfd.nodes import DONE


def self_registry(
    state: AggregatorState,
    history: HistoryStore | None,
    captures: CaptureService,
    exporters: ExporterRegistry,
    webhook: Webhook,
    *,
    nodes: NodeMemory,
    nats: NatsProgress | None = None,
    partition: Partition | None = None,
) -> CollectorRegistry:
    """What the aggregator exports of itself, collected at each scrape and in each round; thread-safe."""

    def values() -> list[Value]:
        outcomes, uploads = captures.outcomes(), captures.waiting_uploads()
        with state.lock:
            found = _state_values(state)
            unstored = sum(agent.stored_sequence < agent.last_sequence for agent in state.agents)
            found += [*_failing_jobs(state), *_capture_values(outcomes, state.fleet.jobs)]
            found += _upload_values(uploads, state.fleet.jobs)
        return [
            *found,
            *_failure_values(state.failures),
            *_history_values(history, unstored),
            *_nats_values(nats),
            *_partition_values(partition),
            *(value for status in exporters.status() for value in _exporter_values(status)),
            *_webhook_values(webhook),
            *_node_memory_values(nodes),
        ]

    return process_registry(lambda: families(values(), METRICS.__getitem__))


def reported_agents(agents: Iterable[AgentState], now_s: float, forgotten_after_s: float) -> list[AgentState]:
    """One agent per node, the one that sent last, in the order of `agents`, whoever sent last of all.

    None that said goodbye or is long gone.
    """
    newest: dict[str, AgentState] = {}
    for agent in agents:
        known = newest.get(agent.node)
        if known is None or _sent_later(agent, known):
            newest[agent.node] = agent
    return [
        agent
        for agent in newest.values()
        if agent.stream is not None or not (agent.left or now_s - agent.received_s > forgotten_after_s)
    ]


def _sent_later(one: AgentState, other: AgentState) -> bool:
    return (one.stream is not None, one.received_s) >= (other.stream is not None, other.received_s)


def agent_keys(agent: AgentState) -> list[SeriesKey]:
    """The series of one agent, which depend on its node's name and on its version."""
    labels = SeriesKey.of("", {"node": agent.node}).labels
    return [
        SeriesKey.of("perfd_agent_info", {"node": agent.node, "version": agent.perfd_version}),
        *(
            SeriesKey(metric, labels)
            for metric in (
                "perfd_agent_up",
                "perfd_agent_silent_seconds",
                "perfd_agent_clock_offset_seconds",
                "perfd_agent_dropped_records_total",
                "perfd_agent_unknown_records_total",
            )
        ),
    ]


def agent_values(agent: AgentState, now_s: float) -> list[float]:
    """Values of `agent_keys`, in the same order; NaN where one is unknown."""
    offset_s = agent.clock_offset_s
    return [
        1.0,
        float(agent.stream is not None),
        max(0.0, now_s - agent.received_s),
        math.nan if offset_s is None else offset_s,
        float(agent.dropped_records),
        float(agent.unknown_records),
    ]


def error_values(node: NodeState, jobs: JobRegistry) -> list[Value]:
    """Hardware errors of one node."""
    values: list[Value] = []
    for (job, gpu, code), count in node.hardware_errors.items():
        labels = {**jobs.labels(job), "node": node.name, "instance": node.name, "gpu": gpu, "code": code}
        values.append(("perfd_hardware_errors_total", labels, count))
    return values


def collector_keys(node: NodeState) -> list[SeriesKey]:
    """The series of one node's collectors; a new collector changes the node's `version`."""
    return [
        SeriesKey.of(metric, {"node": node.name, "collector": collector})
        for collector in node.health
        for metric in ("perfd_collector_success", "perfd_collector_duration_seconds")
    ]


def collector_values(node: NodeState) -> list[float]:
    """Values of `collector_keys`, in the same order."""
    return [value for one in node.health.values() for value in (float(one.success), one.duration_s)]


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
        for server, received in zip(readings.layout.entities.known, fresh, strict=True)
        if received.any() and (info := node.server_infos.get(server)) is not None
    ]


def _failure_values(failures: Failures) -> list[Value]:
    return [
        ("perfd_failures_total", {"part": part.value}, count)
        for part, count in sorted(failures.counts().items())
    ]


def _failing_jobs(state: AggregatorState) -> list[Value]:
    jobs = state.fleet.jobs
    return [
        ("perfd_job_failing", {**jobs.labels(job), "part": part.value}, 1.0)
        for job, part in state.failures.jobs()
    ]


def _state_values(state: AggregatorState) -> list[Value]:
    counters = state.counters
    return [
        ("perfd_build_info", {"version": __version__}, 1.0),
        ("perfd_agents_connected", {}, state.agents.connected()),
        ("perfd_jobs", {}, len(state.fleet.jobs)),
        ("perfd_batches_total", {}, counters.batches),
        ("perfd_records_total", {}, counters.records),
        ("perfd_samples_total", {}, counters.samples),
        ("perfd_repeated_batches_total", {}, counters.repeated_batches),
        ("perfd_resent_batches_total", {}, counters.resent_batches),
        ("perfd_late_batches_total", {}, counters.late_batches),
        ("perfd_lost_batches_total", {}, counters.lost_batches),
        ("perfd_malformed_messages_total", {}, counters.malformed_messages),
        ("perfd_ingest_seconds_total", {}, counters.ingest_s),
        ("perfd_ticks_total", {}, counters.ticks),
        ("perfd_failed_ticks_total", {}, counters.failed_ticks),
        ("perfd_tick_seconds_total", {}, counters.tick_s),
        ("perfd_round_timestamp_seconds", {}, counters.round_unix_s),
        ("perfd_rule_evaluation_seconds_total", {}, counters.rule_evaluation_s),
        *(
            ("perfd_rejected_total", {"bound": bound}, count)
            for bound, count in sorted(counters.rejected.items())
            if count
        ),
        *(
            ("perfd_refused_total", {"reason": refusal.value}, count)
            for refusal, count in sorted(state.audit.counts().items())
        ),
    ]


def _capture_values(outcomes: Mapping[tuple[str, str, str], int], jobs: JobRegistry) -> list[Value]:
    return [
        (name, {**jobs.labels(job), "state": outcome}, count)
        for (name, job, outcome), count in sorted(outcomes.items())
    ]


def _upload_values(uploads: Mapping[str, tuple[int, float]], jobs: JobRegistry) -> list[Value]:
    return [
        value
        for job, (files, longest_s) in sorted(uploads.items())
        for value in (
            ("perfd_capture_waiting_uploads", jobs.labels(job), files),
            ("perfd_capture_upload_wait_seconds", jobs.labels(job), longest_s),
        )
    ]


def _history_values(history: HistoryStore | None, unstored_agents: int) -> list[Value]:
    if history is None:
        return []
    return [
        ("perfd_history_up", {}, history.healthy),
        ("perfd_history_written_rows_total", {}, history.written_rows),
        ("perfd_history_failed_rows_total", {}, history.failed_rows),
        ("perfd_history_damaged_rows_total", {}, history.damaged_rows),
        ("perfd_history_lost_rows_total", {}, history.lost_rows),
        ("perfd_history_unreadable_pages_total", {}, history.unreadable_pages),
        ("perfd_history_unstored_agents", {}, unstored_agents),
    ]


def _nats_values(nats: NatsProgress | None) -> list[Value]:
    if nats is None:
        return []
    return [
        ("perfd_nats_reading", {}, nats.reading),
        ("perfd_nats_waiting_messages", {}, nats.waiting_messages),
        ("perfd_nats_unsettled_messages", {}, nats.unsettled_messages),
        ("perfd_nats_lag_seconds", {}, nats.lag_s),
        ("perfd_nats_received_messages_total", {}, nats.received_messages),
        ("perfd_nats_refused_messages_total", {}, nats.refused_messages),
        ("perfd_nats_interruptions_total", {}, nats.interruptions),
        ("perfd_nats_direct_messages_total", {}, nats.direct_messages),
        ("perfd_nats_undelivered_seconds", {}, nats.undelivered_for_s(time.monotonic())),
    ]


def _partition_values(partition: Partition | None) -> list[Value]:
    if partition is None:
        return []
    return [
        ("perfd_partition_lease_held", {}, partition.held()),
        ("perfd_partition_epoch", {}, partition.epoch),
        ("perfd_group_partitions", {}, partition.count),
        ("perfd_group_members", {}, partition.members()),
    ]


def _exporter_values(status: ExporterStatus) -> list[Value]:
    labels = {"exporter": status.name}
    return [
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


def _node_memory_values(nodes: NodeMemory) -> list[Value]:
    values: list[Value] = []
    for one in nodes.standings():
        if one.incidents:
            labels = {"node": one.node}
            # Only a node that more than one job blamed can be one.
            values.append(("perfd_node_suspect_ratio", labels, one.suspect_ratio if one.jobs > 1 else None))
            values.append(("perfd_node_incidents", labels, one.whole.incidents))
            values.append(("perfd_node_lost_gpu_seconds", labels, one.lost_gpu_h * 3600))
    ended = Counter("done" if one.outcome == DONE else "failed" for one in nodes.drains() if one.outcome)
    return [
        *values,
        *(("perfd_node_drains", {"outcome": how}, count) for how, count in sorted(ended.items())),
    ]


def _webhook_values(webhook: Webhook) -> list[Value]:
    counted = {
        "perfd_webhook_requests_total": webhook.requests(),
        "perfd_webhook_alerts_total": webhook.alerts(),
    }
    return [
        (name, {"outcome": outcome}, count)
        for name, outcomes in counted.items()
        for outcome, count in sorted(outcomes.items())
    ]
