"""What an agent does not provide, why, and how to fix it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from perfd import __version__
from perfd.aggregator.jobs import JobState
from perfd.aggregator.state import AgentState, NodeState
from perfd.model import Scope

_DOCTOR = "perfd doctor"
_CLOCK_OFF_S = 1.0
"""Captures of several nodes start together, 3 s ahead by their clocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Something that is missing on a node."""

    what: str
    words: str
    """The consequence, or the cause."""
    command: str | None = None
    """A command for the node that shows or fixes it; None if there is none."""


def running_by_node(jobs: Iterable[JobState]) -> Mapping[str, Sequence[JobState]]:
    """The jobs that have not ended, by node that reports them."""
    found: dict[str, list[JobState]] = {}
    for job in jobs:
        for node in () if job.ended else job.nodes:
            found.setdefault(node, []).append(job)
    return found


def gaps_of(agent: AgentState, node: NodeState | None, running: Sequence[JobState]) -> list[dict[str, Any]]:
    """The `missing` entries of schema perfd.agents/1; none for an agent that left.

    `running` are the jobs of its node that have not ended.
    """
    if agent.left:
        return []
    found = [*_of_agent(agent), *(_of_node(node) if node else ()), *_of_jobs(running, node)]
    return [asdict(gap) for gap in found]


def _of_agent(agent: AgentState) -> Iterator[Gap]:
    if agent.stream is None:
        words = "The agent is not connected: check on the node that it runs and can reach the aggregator."
        yield Gap(what="connection", words=words, command=_DOCTOR)
    if agent.perfd_version and agent.perfd_version != __version__:
        words = f"The agent is perfd {agent.perfd_version}, the aggregator {__version__}: update the older."
        yield Gap(what="version", words=words)
    if agent.clock_offset_s is not None and abs(agent.clock_offset_s) > _CLOCK_OFF_S:
        words = f"The node's clock is {agent.clock_offset_s:+.1f} s off: captures of several nodes need NTP."
        yield Gap(what="clock", words=words, command="chronyc tracking")
    if agent.dropped_records:
        words = f"{agent.dropped_records:,} records were lost to a full spool: raise spool.max_bytes."
        yield Gap(what="records", words=words)
    if agent.stream is not None and not agent.capture_tools:
        words = "No capture tool is available: nsys, py-spy and the others are missing or disabled."
        yield Gap(what="capture tools", words=words, command=_DOCTOR)


def _of_node(node: NodeState) -> Iterator[Gap]:
    for health in node.health.values():
        if not health.success:
            yield Gap(what=health.collector, words=health.message or "The collector fails.", command=_DOCTOR)
    if node.placements and node.readings.get(Scope.GPU) is None and "nvml" not in node.health:
        words = "NVML sees no GPU: activity, memory, power, temperature and clocks are unknown."
        yield Gap(what="GPU counters", words=words, command="nvidia-smi")


def _of_jobs(jobs: Sequence[JobState], node: NodeState | None) -> Iterator[Gap]:
    for job in jobs:
        if not (len(job.logs) or len(job.steps)):
            words = f"No log of job {job.name} is read, so steps come from NCCL operations, if at all."
            yield Gap(what="log", words=words, command="perfd agent --aggregator HOST:9461 --log FILE")
        ranks = sum(name == job.name for name, _ in node.placements) if node else 0
        if (ranks > 1 or (ranks and len(job.nodes) > 1)) and not len(job.communication.collectives):
            words = (
                f"Job {job.name} reports no NCCL operations: without perfd's plugin, waiting and slow links"
                " are not seen. Start the job with perfd run, or as docs/nccl.md shows."
            )
            yield Gap(
                what="NCCL plugin",
                words=words,
                command=f"perfd run --job {shlex.quote(job.name)} -- COMMAND",
            )
