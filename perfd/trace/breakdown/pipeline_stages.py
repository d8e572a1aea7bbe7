"""How long each stage of a pipeline waited for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfd.trace.breakdown.collective_matching import Collectives
from perfd.trace.breakdown.rank_breakdown import RankTimeline
from perfd.trace.model.intervals import Coverage
from perfd.trace.model.operation_kinds import OperationKind
from perfd.trace.model.rank_trace import RankTrace

_PIPELINE_GROUPS = ("pipeline_model_parallel", "pipeline_parallel")
_PIPELINE_NAMES = frozenset({"pp", "pipe", "pipeline", "mesh_pp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStall:
    """What one rank of a pipeline waited for, within the window."""

    rank: int
    stage: int | None
    message_wait_s: float | None
    """In sends and receives that nothing hid, less what the transfer itself took; None where unknown."""
    barrier_wait_s: float
    """In barriers and collectives with ranks of other stages."""
    compute_s: float
    span_s: float

    @property
    def stall_ratio(self) -> float | None:
        """Share of the window that the stage stood still for other stages."""
        if self.message_wait_s is None or self.span_s <= 0:
            return None
        return (self.message_wait_s + self.barrier_wait_s) / self.span_s


def stage_of(trace: RankTrace) -> int | None:
    """The rank's place in its pipeline group; None without a pipeline or where groups have no description."""
    for group in trace.groups:
        words = group.description.lower()
        named = words in _PIPELINE_NAMES or words.removesuffix("_group") in _PIPELINE_GROUPS
        if named and trace.rank in group.ranks and len(group.ranks) > 1:
            return sorted(group.ranks).index(trace.rank)
    return None


def stage_stalls(timelines: Mapping[int, RankTimeline], found: Collectives) -> list[StageStall]:
    """One for each rank that exchanges messages; empty when none does."""
    stages = {rank: stage_of(timeline.trace) for rank, timeline in timelines.items()}
    stalls = []
    for rank, timeline in timelines.items():
        rows = [row for row in found.by_rank.get(rank, ()) if row.operation == "sendrecv"]
        if not rows:
            continue
        whole = timeline.whole()
        known = all(row.matched_count == row.count for row in rows)
        transfer = sum(row.transfer_s or 0.0 for row in rows)
        exposed = _exposed_messages_s(timeline)
        stalls.append(
            StageStall(
                rank=rank,
                stage=stages[rank],
                message_wait_s=max(0.0, exposed - transfer) if known and timeline.complete else None,
                barrier_wait_s=_across_stages_s(rank, stages, found),
                compute_s=whole.compute_s,
                span_s=whole.span_s,
            )
        )
    return stalls


def spans_stages(ranks: Sequence[int], stages: Mapping[int, int | None]) -> bool:
    """Whether a group's ranks are in different stages of a pipeline."""
    return len({stages.get(rank) for rank in ranks}) > 1


def _across_stages_s(rank: int, stages: Mapping[int, int | None], found: Collectives) -> float:
    return sum(
        float(group.blame.waited_s[group.ranks.index(rank)])
        for group in found.waiting
        if rank in group.ranks and spans_stages(group.ranks, stages)
    )


def _exposed_messages_s(timeline: RankTimeline) -> float:
    """Time in sends and receives during which nothing else ran."""
    operations, window = timeline.trace.operations, timeline.window
    communication = operations.kind == OperationKind.COMMUNICATION
    is_message = np.array(["sendrecv" in name.lower() for name in timeline.trace.names], dtype=np.bool_)
    messages = communication & is_message[operations.name]
    for one in timeline.trace.collectives:
        if one.messages:
            messages[one.operation] = True
    rest = communication & ~messages
    others = Coverage.union(
        timeline.compute_memory, Coverage(operations.start_ns[rest], operations.end_ns[rest])
    )
    everything = Coverage.union(others, Coverage(operations.start_ns[messages], operations.end_ns[messages]))
    covered = everything.covered_ns(window.start_ns, window.end_ns)
    return (covered - others.covered_ns(window.start_ns, window.end_ns)) / 1e9
