"""Communication as NCCL's own kernels show it: how much is transfer, how much is waiting, and for whom.

Uses GPU times of perfd's plugin or of NCCL's Inspector; `communicator_waits` separates transfer from waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from perfd.analysis.collectives.broadcast_roots import broadcast_roots
from perfd.analysis.collectives.communicator_totals import (
    NcclGroup,
    NcclKind,
    groups_of,
    kinds_of,
    measures_of,
    recorder,
)
from perfd.analysis.collectives.kernel_time_by_dimension import NcclDimension
from perfd.analysis.collectives.peer_waits import PeerWaits, peer_waits
from perfd.analysis.collectives.rank_waits_per_step import waits_by_step
from perfd.analysis.collectives.slow_links import SlowGroup, slow_groups
from perfd.analysis.collectives.step_times_by_waits import StepsOfOperations, in_steps
from perfd.analysis.collectives.waiting_by_rank import NcclRank, RankShares, RankTally
from perfd.analysis.counterfactual import (
    LateSet,
    PeriodicStalls,
    became_longer,
    periodic_stalls,
    slow_since,
    stalled_steps,
)
from perfd.analysis.data.job_data import Bools, Floats, Ints, JobData, NcclTimeTable
from perfd.analysis.layout import (
    ALONE,
    PAIR_OPERATION,
    LinkSpeeds,
    RankLocations,
    group_name,
    places,
    role_name,
)
from perfd.analysis.operations.communicator_waits import CommunicatorBatch, ranks_behind, stacked
from perfd.analysis.operations.rank_index import RankIndex, roster
from perfd.model import ParallelLayout, TimingSource

__all__ = ["NcclDimension", "NcclGroup", "NcclKind", "NcclRank", "NcclSummary", "group_name", "nccl"]

_NEWEST_STEPS = 40
"""Looked at for a rank that became slow."""
_MOST_COMMUNICATORS = 2_048
"""In larger jobs steps are not looked at one by one."""
_MANY = 100
"""Operations that a rank counts, by when some of them are reported if its plugin reports any."""
_SILENT_S = 30.0
"""A rank whose newest reading is this much older than the others' does not count as current."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """A rank that all others wait for since some steps."""

    rank: int
    role: str
    """In words, such as `stage 1, tensor rank 0`."""
    has_peers: bool = False
    """Whether some ranks of the job have the same work."""
    counted_twice: bool = False
    """Whether others may wait for one lag in several operations, so that it is less than it seems."""
    since_step: int
    before_s: float
    """A step before, and since."""
    since_s: float
    longer_for_s: float
    """The total time of the steps since then."""
    gain_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StallingRanks:
    """A rank, or some together, that all others wait for in each so many steps."""

    ranks: tuple[int, ...]
    node: str | None
    """Their node, if it has no other ranks; None for one rank."""
    period_steps: int
    stalls: int
    """That were seen."""
    usual_s: float
    """A step without a stall, and with one."""
    stalled_s: float
    gain_ratio: float

    @property
    def step_s(self) -> float:
        """The mean step, stalls included."""
        return self.usual_s / (1 - self.gain_ratio)

    @property
    def longer_for_s(self) -> float:
        """The time of all steps since the first stall that was seen."""
        return self.stalls * ((self.period_steps - 1) * self.usual_s + self.stalled_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LateTogether:
    """Ranks of a node that come later than their peers elsewhere."""

    node: str
    ranks: Sequence[int]
    gain_ratio: float
    """The share of a step that the job would gain if they were as fast as those."""
    gain_error_ratio: float
    persistence_ratio: float
    """The share of recent steps in which they were late."""
    waits_ratio: float = 0.0
    """What the middle one of them waits meanwhile, less what is usual of its role, as a share of the time."""
    whole: bool = True
    """Whether they do not wait for each other meanwhile."""
    awaited_rank: int | None = None
    """The one that the others wait for, if it is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclSummary:
    """NCCL's view of a job's communication; empty and None if not recorded."""

    share_ratio: float | None = None
    """Time with an NCCL kernel on the GPU, waiting and hidden parts included; the mean over ranks."""
    transfer_ratio: float | None = None
    wait_ratio: float | None = None
    dimensions: Sequence[NcclDimension] = ()
    """The same by parallel dimension, the largest first; two that run at one time count each. Without a share
    of all of it, those of which all ranks have times."""
    kinds: Sequence[NcclKind] = ()
    groups: Sequence[NcclGroup] = ()
    """Of very many those that take most of the time."""
    ranks: Sequence[NcclRank] = ()
    """Of very many those that the others wait for most, and that wait most."""
    late_nodes: Sequence[LateTogether] = ()
    """Nodes whose ranks come later than their peers on others, the costliest first."""
    peer_waits: PeerWaits = field(default_factory=PeerWaits)
    """Who waits for whom; of very many ranks those that matter."""
    stage_wait_ratios: Sequence[float] = ()
    """The share of time that ranks of each stage of a pipeline wait in its sends and receives, the mean."""
    slow_groups: Sequence[SlowGroup] = ()
    """Groups whose transfers take far longer than they could, the costliest first."""
    slow_since: SlowRank | None = None
    """A rank that became slow while the job ran, by its own past; only of a role that no other rank has."""
    stalling: StallingRanks | None = None
    """Ranks that stall at regular distances."""
    roots: Sequence[int] = ()
    """Ranks that hand something to others by broadcast in each step, in a job of unknown layout."""
    missing_ranks: Sequence[int] = ()
    """Ranks that report nothing although others do: then no rank of their stage can be blamed."""
    behind_ranks: Sequence[int] = ()
    """Ranks whose operations come seconds later than those of their peers, or not at all: the same."""
    renewed: bool = False
    """Whether communicators took the place of others seconds ago: who is last in them may be chance."""
    untimed_ranks: Sequence[int] = ()
    """Ranks that report no times on the GPU although others do: then shares of time are unknown."""
    lost_operations: int | None = None
    """Operations that were not seen, of all ranks: with some lost, the shares are lower bounds."""
    source: str | None = None


def nccl(
    job: JobData,
    parallel: ParallelLayout,
    *,
    step_s: float | None = None,
    speeds: LinkSpeeds | None = None,
) -> NcclSummary:
    """What the newest operations of all communicators show.

    `step_s` is how long a step takes; without it the sizes of operations show which are of one step.
    `speeds` is what joins GPUs, where it is known: what a group should reach.
    """
    if not job.nccl and not job.collectives:
        return NcclSummary()
    times = _fresh(job.nccl)
    stacks = stacked(job.collectives, parallel)
    # All operations are seen where times are: without sends and receives there is no pipeline.
    pipeline = not times or any(stack.operation == PAIR_OPERATION for stack in stacks)
    behind = ranks_behind(stacks, times.rank[times.operations >= _MANY])
    known = roster(
        times.rank, [stack.ranks for stack in stacks], parallel, may_have_stages=pipeline, behind=behind
    )
    of_steps = in_steps([stack.at_places(known.ranks) for stack in stacks], job, step_s)
    placed = of_steps.stacks
    tally = RankTally(placed, known.stages, known.roles, parallel)
    unseen = _unseen(placed, known)
    recorded, lately = (np.minimum(ratio + unseen, 1.0) for ratio in _busy(times, known))
    timed = np.isfinite(recorded)
    together = launched_together(job, known.ranks)
    where = places(job, known.ranks, speeds or LinkSpeeds(inside_bytes_per_s={}, network_bytes_per_s={}))
    few = sum(len(one.ranks) for one in placed) <= _MOST_COMMUNICATORS
    shares = tally.shares(
        known.reporting,
        (recorded, lately),
        known.in_doubt,
        step_s,
        of_steps.each_s,
        together=together,
        sets=(where.node,) if few else (),
    )
    measures = [measures_of(stack, where) for stack in placed]
    slow_rank, stalling = None, None
    if not (tally.renewed or behind):
        slow_rank, stalling = _by_steps(of_steps, known, job, step_s, parallel, where=where)
    share, wait = _of_all(shares) if times else (None, None)
    return NcclSummary(
        share_ratio=share,
        transfer_ratio=None if share is None or wait is None else max(0.0, share - wait),
        wait_ratio=wait,
        dimensions=tally.dimensions.shares(known.reporting, shares.busy) if times else (),
        kinds=kinds_of(stacks, measures),
        groups=groups_of(stacks, measures),
        ranks=shares.records(known.ranks),
        late_nodes=_late_together(shares.late_sets, known, where.names),
        peer_waits=_peer_waits(placed, tally, shares, known),
        stage_wait_ratios=_stage_waits(tally, known, parallel) if times else (),
        slow_groups=slow_groups(stacks, [one.expected for one in measures]),
        slow_since=slow_rank,
        stalling=stalling,
        roots=broadcast_roots(stacks, parallel),
        missing_ranks=tuple(known.missing.tolist()),
        behind_ranks=behind,
        renewed=tally.renewed,
        untimed_ranks=tuple(known.ranks[known.reporting[~timed]].tolist()) if timed.any() else (),
        lost_operations=int(times.lost_operations.sum()) if times else None,
        source=_source(times, stacks),
    )


def _late_together(
    late: Sequence[Sequence[LateSet]], known: RankIndex, names: Sequence[str] = ()
) -> tuple[LateTogether, ...]:
    """Of one way to put ranks together, or of none; `names` are of its sets, by number."""
    found = [
        LateTogether(
            node=names[one.number] if names else "",
            ranks=known.ranks[one.places].tolist(),
            gain_ratio=one.gain_ratio,
            gain_error_ratio=one.error_ratio,
            persistence_ratio=one.persistence_ratio,
            waits_ratio=one.waits_ratio,
            whole=one.whole,
            awaited_rank=None if one.awaited is None else int(known.ranks[one.awaited]),
        )
        for sets in late
        for one in sets
    ]
    return tuple(sorted(found, key=lambda one: -one.gain_ratio))


def launched_together(job: JobData, ranks: Ints) -> Bools:
    """Of each rank, whether one process launches its work and that of other ranks, as in JAX."""
    pids: dict[tuple[str, int], list[int]] = {}
    for node, placed in job.placements.items():
        for one in placed:
            if one.pid is not None:
                pids.setdefault((node, one.pid), []).append(one.rank)
    several = [rank for of_process in pids.values() if len(of_process) > 1 for rank in of_process]
    return np.asarray(np.isin(ranks, several))


def _peer_waits(
    placed: Sequence[CommunicatorBatch], tally: RankTally, shares: RankShares, known: RankIndex
) -> PeerWaits:
    reported_ratio = np.full(len(known.ranks), np.nan)
    reported_ratio[shares.places] = shares.wait
    return peer_waits(placed, tally.scales, known.ranks, tally.wait, reported_ratio)


def _by_steps(
    of_steps: StepsOfOperations,
    known: RankIndex,
    job: JobData,
    step_s: float | None,
    parallel: ParallelLayout,
    *,
    where: RankLocations,
) -> tuple[SlowRank | None, StallingRanks | None]:
    """Who became slow by its own past, and who stalls at regular distances.

    With peers a rank is known by when it arrives, but only after more steps, since of two one is last by
    chance half of the time.
    """
    placed, each_s = of_steps.stacks, of_steps.each_s
    if step_s is None or len(known.missing) or sum(len(one.ranks) for one in placed) > _MOST_COMMUNICATORS:
        return None, None
    # Ranks of unknown role, as in a pipeline whose log shows no layout, have no known peers.
    _, alike = np.unique(known.roles[known.roles != ALONE], return_counts=True)
    has_peers, stalled = bool(alike.max(initial=0) > 1), len(stalled_steps(each_s)) > 0
    if has_peers and not stalled and not became_longer(each_s):
        return None, None
    waits = waits_by_step(placed, len(known.ranks), job.steps, step_s, _NEWEST_STEPS, done=of_steps.done)
    one_group = parallel.tp == parallel.world_size
    by_longest = slow_since(each_s, waits.longest_s) if has_peers else None
    found = by_longest or slow_since(each_s, waits.summed_s, own_times=one_group)
    slow = (
        None
        if found is None
        else SlowRank(
            rank=int(known.ranks[found.place]),
            role=role_name(int(known.ranks[found.place]), parallel),
            has_peers=has_peers,
            counted_twice=has_peers and by_longest is None,
            since_step=_newest_step(of_steps, job) - found.steps + 1,
            before_s=found.before_s,
            since_s=found.since_s,
            longer_for_s=found.steps * found.since_s,
            gain_ratio=found.gain_ratio,
        )
    )
    stalls = periodic_stalls(each_s, waits.summed_s) if stalled or not has_peers else None
    return slow, None if stalls is None else _stalling(stalls, known.ranks, where)


def _newest_step(of_steps: StepsOfOperations, job: JobData) -> int:
    """The newest of the steps one by one: a log with a line every few steps is behind."""
    by_lines = job.operation_pace is None and of_steps.done is not None
    return int(of_steps.done or 0) if by_lines else int(job.steps.step[-1])


def _stalling(found: PeriodicStalls, ranks: Ints, where: RankLocations) -> StallingRanks:
    chosen = np.array(found.places, dtype=np.int64)
    return StallingRanks(
        ranks=tuple(ranks[chosen].tolist()),
        node=where.node_of(chosen),
        period_steps=found.period_steps,
        stalls=found.stalls,
        usual_s=found.usual_s,
        stalled_s=found.stalled_s,
        gain_ratio=found.gain_ratio,
    )


def _of_all(shares: RankShares) -> tuple[float | None, float | None]:
    """Means over ranks of time in kernels and of waiting: of some ranks' nothing follows for the rest."""
    if not np.isfinite(shares.busy).all():
        return None, None
    return float(shares.busy.mean()), float(shares.wait.mean()) if np.isfinite(shares.wait).all() else None


def _fresh(times: NcclTimeTable) -> NcclTimeTable:
    newest = np.fmax.reduce(times.read_s, initial=0.0)
    fresh = (times.span_s > 0) & ~(newest - times.read_s > _SILENT_S)
    return times if fresh.all() else times.rows(fresh)


def _stage_waits(tally: RankTally, known: RankIndex, parallel: ParallelLayout) -> tuple[float, ...]:
    """Nothing where compute hides it, as between the chunks of an interleaved schedule."""
    if (parallel.pp or 1) < 2 or (parallel.vp or 1) > 1 or not tally.pipeline_wait.any():
        return ()
    waits, stages = np.fmin(tally.pipeline_wait[known.reporting], 1.0), known.stages[known.reporting]
    of_stage = [waits[stages == stage] for stage in range(parallel.pp or 1)]
    return tuple(float(waits.mean()) for waits in of_stage) if all(map(len, of_stage)) else ()


def _busy(times: NcclTimeTable, known: RankIndex) -> tuple[Floats, Floats]:
    """Share of time in kernels of each rank that says something, usually and lately; NaN is unknown."""
    if not times:
        nothing = np.full(len(known.reporting), np.nan)
        return nothing, nothing
    order = np.argsort(times.rank)
    return (times.busy_s / times.span_s)[order], times.lately_ratio[order]


def _unseen(placed: Sequence[CommunicatorBatch], known: RankIndex) -> Floats:
    """Share of time in kernels of each of them that NCCL's own stamps leave out."""
    unseen = np.zeros(len(known.ranks))
    for stack in placed:
        if stack.unseen_ratio.any():
            ratios = np.nan_to_num(stack.unseen_ratio).ravel()
            unseen += np.bincount(stack.ranks.ravel(), ratios, len(unseen))
    return np.asarray(unseen[known.reporting])


def _source(times: NcclTimeTable, stacks: Sequence[CommunicatorBatch]) -> str | None:
    reported = [(stack.collectives.sources[0], stack.collectives.timings[0]) for stack in stacks]
    if times:
        by_proxy = any(timing is TimingSource.PROXY for _, timing in reported)
        return recorder("", TimingSource.PROXY if by_proxy else TimingSource.GPU)
    return recorder(*reported[0]) if reported else None
