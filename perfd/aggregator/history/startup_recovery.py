"""Puts back what history knows when the aggregator starts, so that numbers go on where they were."""

from __future__ import annotations

from collections.abc import Collection

from perfd.aggregator.failures import Part
from perfd.aggregator.history.history_reader import HistoryReader, StoredJob
from perfd.aggregator.jobs import RecordSource
from perfd.aggregator.state import AggregatorState
from perfd.model import GpuInfo, RankPlacement, ServerInfo

_PHASE_BLOCKS = 1_000
"""Of a job that a start reads back, the newest: far more than any window of the analysis."""


def restore(
    state: AggregatorState,
    history: HistoryReader,
    *,
    now_unix_s: float,
    now_s: float,
    forgotten_after_s: float,
) -> None:
    """Fill an empty state with agents, nodes and the jobs that are not forgotten yet."""
    for agent in history.agents():
        silent_s = max(0.0, now_unix_s - agent.received_unix_s)
        # What agents that left sent may still wait in a stream, as long as their jobs are known.
        if not agent.left or silent_s <= forgotten_after_s:
            state.agents.restore(
                agent.agent_id,
                agent.node,
                agent.last_sequence,
                now_s - silent_s,
                agent.epoch,
                left=agent.left,
            )
    limit = state.fleet.limits.steps_per_job
    jobs = history.jobs_since(now_unix_s - forgotten_after_s, steps=limit, phases=_PHASE_BLOCKS)
    known = {job.job for job in jobs}
    for stored in jobs:
        _restore_job(state, stored, now_unix_s, now_s)
    for reported_by, job, origin in history.origins():
        state.fleet.members.restore_origin(reported_by, job, origin)
    for name, fact in history.node_facts():
        with state.failures.contained(Part.HISTORY, node=name):
            _restore_fact(state, known, fact, _source(name, now_unix_s, now_s))


def _restore_fact(
    state: AggregatorState,
    known: Collection[str],
    fact: GpuInfo | RankPlacement | ServerInfo,
    source: RecordSource,
) -> None:
    node = state.fleet.node(source.node)
    if node is None:
        return
    node.received_s = source.now_s
    if isinstance(fact, GpuInfo):
        node.gpu_info(fact)
    elif isinstance(fact, ServerInfo):
        node.server_info(fact)
    elif fact.job in known and state.fleet.members.job(fact.job, source) is not None:
        node.place(fact)


def _restore_job(state: AggregatorState, stored: StoredJob, now_unix_s: float, now_s: float) -> None:
    nodes = list(dict.fromkeys(node for node, _ in stored.events)) or [""]
    job = state.fleet.members.job(stored.job, _source(nodes[0], now_unix_s, now_s))
    if job is None:
        return
    for node in list(job.nodes):
        # None reports it yet.
        state.fleet.jobs.left(job, node)
    contained = state.failures.contained
    for block in stored.phases:
        with contained(Part.HISTORY):
            job.phases.put(block)
    for line in stored.steps:
        with contained(Part.HISTORY):
            job.restore_step(line, now_unix_s)
    for _, event in stored.events:
        with contained(Part.HISTORY):
            job.event(event)
    if job.ended_unix_s is not None:
        job.lifetime.ended_s = now_s - max(0.0, now_unix_s - job.ended_unix_s)
    with contained(Part.HISTORY):
        job.restore(
            attempt=stored.attempt,
            started_unix_s=stored.started_unix_s,
            description=stored.description,
            past=stored.past,
        )


def _source(node: str, now_unix_s: float, now_s: float) -> RecordSource:
    return RecordSource(agent_id="", node=node, sent_unix_s=now_unix_s, now_s=now_s)
