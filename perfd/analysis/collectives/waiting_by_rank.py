"""Waiting by rank: what each waits, what each is waited for, and how much slower than its peers it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from perfd.analysis.collectives.gain_by_late_rank import gains_of_late
from perfd.analysis.collectives.kernel_time_by_dimension import DimensionTally
from perfd.analysis.collectives.late_rank_cost import (
    ALL_HELD,
    LONG,
    RECENT,
    CausedLosses,
    Lateness,
    LateRankLosses,
)
from perfd.analysis.collectives.newly_slow_rank import EARLIER, NEWEST, onset, possible
from perfd.analysis.collectives.step_losses import AnalysisWindow
from perfd.analysis.counterfactual import LateSet, late_ranks_together
from perfd.analysis.data.job_data import Bools, Floats, Ints
from perfd.analysis.data.robust_stats import by_peers, highest, mean, median, over_last, peers_of
from perfd.analysis.operations.communicator_waits import CommunicatorBatch
from perfd.analysis.operations.p2p_timing import knows_receivers
from perfd.analysis.operations.peers_of_expert_groups import balanced, peers_in_expert_groups
from perfd.model import ParallelLayout
from perfd.thresholds import THRESHOLDS

_FEWEST_OPERATIONS = 20
"""Fewer matched operations say nothing of a rank."""
_MOST_RANKS = 1024
"""Ranks in a summary: of more only those at either end, since each record costs time at each look."""
_AT_EITHER_END = 256
"""Ranks that cost others the most, and as many that wait the most. Chosen."""
_NEWEST = 5
"""The newest steps."""
_ON_TIME_RATIO = 0.25
"""Of what a rank usually costs: a block in which it costs less is from before it became slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRank:
    """One rank's time in NCCL's kernels, as shares of all time."""

    rank: int
    busy_ratio: float | None
    """None when only a part of the operations was recorded, or without times on the GPU."""
    wait_ratio: float | None
    """Waiting for the others in kernels, also while something else is computed."""
    gain_ratio: float | None
    """The share of a step that the job would gain if the rank were as fast as its peers: ranks of the same
    stage, tensor position and experts. None without peers."""
    gain_error_ratio: float | None = None
    """Its standard error, from the scatter of recent steps."""
    last_ratio: float | None = None
    """Its share of all waiting among its peers."""
    persistence_ratio: float | None = None
    """The share of these blocks in which they lose at least half of what is worth a name."""
    slowdown_ratio: float | None = None
    """Its time without waits for others, over that of its peers: 1.2 is at least 20% slower."""
    excess_ratio: float | None = None
    """The share of a step that it waits less than its peers, in operations of any kind."""
    step_s: float | None = None
    """How long a step takes of which `gain_ratio` is a share; None without the times of steps."""
    over_steps: float | None = None
    """If it was late and is not any more, for how many steps; None while it is, and if that is unknown."""
    late_for_steps: float | None = None
    """In how many steps it has been late, of those that are held; None where that was not looked at."""
    gain_doubt_ratio: float | None = None
    """`gain_error_ratio` with that of the steps before, where the gain is by how much steps became longer."""
    seen_ratio: float | None = None
    """Of its operations, those that all of their ranks reported: the least of any communicator."""


@dataclass(frozen=True, slots=True)
class RankShares:
    """Shares of time by rank; NaN is unknown."""

    places: Ints
    """Which of the ranks of a `perfd.analysis.operations.rank_index` they are."""
    busy: Floats
    """(ranks,), the time in kernels."""
    wait: Floats
    """(ranks,), waiting in them."""
    columns: Mapping[str, Floats]
    """Each (ranks,), by the name of that field of `NcclRank`: all others."""
    late_sets: Sequence[Sequence[LateSet]] = ()
    """Ranks that are late together, of each way to put ranks together."""

    def records(self, ranks: Ints) -> tuple[NcclRank, ...]:
        """One entry per rank, of very many only those at either end; `ranks` are their numbers, by place."""
        chosen = np.arange(len(self.places))
        if len(chosen) > _MOST_RANKS:
            # A page of 16,384 ranks helps no user: those at either end matter.
            costly = highest(np.nan_to_num(self.columns["gain_ratio"]), _AT_EITHER_END)
            waiting = highest(np.nan_to_num(self.wait), _AT_EITHER_END)
            chosen = np.union1d(costly, waiting)
        columns = dict(self.columns, busy_ratio=self.busy, wait_ratio=self.wait)
        numbers = np.array([column[chosen] for column in columns.values()])
        values = numbers.astype(object)
        values[np.isnan(numbers)] = None
        return tuple(
            NcclRank(rank=rank, **dict(zip(columns, of_rank, strict=True)))
            for rank, of_rank in zip(ranks[self.places[chosen]].tolist(), values.T.tolist(), strict=True)
        )


class RankTally:
    """Shares of time by place of a rank, summed over communicators."""

    def __init__(
        self, stacks: Sequence[CommunicatorBatch], stages: Ints, roles: Ints, parallel: ParallelLayout
    ) -> None:
        """All stacks together, whose ranks are places; `stages` and `roles` are of each, -1 where unknown."""
        self._stages = stages
        self._roles = roles
        self._with_experts = (parallel.ep or 1) > 1
        self._world = world = len(stages)
        self.dimensions = DimensionTally(world, parallel)
        self.wait: Floats = np.zeros(world)
        self.kernels: Floats = np.zeros(world)
        """Time in kernels, summed over operations: those of one group share a kernel, and streams overlap."""
        self.operations: Floats = np.zeros(world)
        self.pipeline_wait: Floats = np.zeros(world)
        """Of the waiting, in sends and receives between stages."""
        self.peer_operations: Floats = np.zeros(world)
        """Of groups of peers only, and of those operations whose last rank is to blame for the waiting."""
        self.seen: Floats = np.ones(world)
        """The share of operations that all their ranks reported, the least of any communicator."""
        self.scales: list[Floats] = []
        """Of each stack, (c,): the share of all time for a second in its operations; 0 is unknown."""
        self.renewed = False
        """Whether communicators have just taken the place of others: who is last in them is chance."""
        self._judged: list[tuple[CommunicatorBatch, Bools]] = []
        self._waits: list[tuple[Ints, Floats]] = []
        """(c, g) twice, of each stack: its ranks, and what each waits as a share of time."""
        self._inside: list[tuple[CommunicatorBatch, Bools]] = []
        """Groups of ranks with different work."""
        for stack in stacks:
            self._add(stack)

    def _add(self, stack: CommunicatorBatch) -> None:
        result = stack.blames
        in_table_s = result.transfer_s[:, None] + result.waited_s
        in_all_s, share = over_last(np.add, in_table_s), over_last(np.add, stack.kernel_ratio)
        useful = (result.operations > 0) & (in_all_s > 0) & np.isfinite(share)
        # The operations in the table stand for all of their kind: what they are of the time, by what they
        # are in the table. It is the same for all ranks but for what was lost on the way.
        scale = np.zeros(len(useful))
        np.divide(share, in_all_s, out=scale, where=useful)
        self.scales.append(scale)
        counts = np.where(useful, result.operations, 0)
        stages = self._stages[stack.ranks]
        first, last = over_last(np.minimum, stages), over_last(np.maximum, stages)
        waits = scale[:, None] * result.waited_s
        self.wait += self._by_rank(stack.ranks, waits)
        self.dimensions.add(stack, useful, waits)
        self._waits.append((stack.ranks, waits))
        gaps = np.flatnonzero(useful & (result.operations < stack.collectives.lengths))
        np.minimum.at(self.seen, stack.ranks[gaps], stack.seen_ratio(gaps)[:, None])
        if not stack.matched and knows_receivers(stack.collectives):
            between = (first >= 0) & (first != last)
            self.pipeline_wait += self._by_rank(stack.ranks, np.where(between[:, None], waits, 0.0))
        self.kernels += self._by_rank(stack.ranks, np.where(useful[:, None], stack.kernel_ratio, 0.0))
        self.operations += self._by_rank(stack.ranks, counts.repeat(stack.ranks.shape[1]))
        if stack.matched:
            roles = self._roles[stack.ranks]
            least, most = over_last(np.minimum, roles), over_last(np.maximum, roles)
            peers = (least >= 0) & (least == most)
            of_one_stage = (first >= 0) & (first == last)
            mixed = np.zeros_like(useful)
            if self._with_experts:
                mixed = useful & of_one_stage & ~peers & balanced(roles)
            self._inside.append((stack, useful & (first >= 0) & ~peers & ~mixed))
            of_peers = useful & peers
            if (renewed := stack.collectives.renewed) is not None:
                self.renewed |= bool(((of_peers | mixed) & renewed).any())
                of_peers, mixed = of_peers & ~renewed, mixed & ~renewed
            judged = np.where(of_peers | mixed, counts, 0)
            self.peer_operations += self._by_rank(stack.ranks, judged.repeat(stack.ranks.shape[1]))
            if mixed.any():
                of_roles = peers_in_expert_groups(stack, np.flatnonzero(mixed), roles)
                self._judged.append((of_roles, np.ones(len(of_roles.ranks), dtype=np.bool_)))
            useful = of_peers
        self._judged.append((stack, useful))

    def shares(
        self,
        ranks: Ints,
        in_kernels: tuple[Floats, Floats],
        in_doubt: Bools,
        step_s: float | None,
        step_time_s: Floats,
        *,
        together: Bools | None = None,
        sets: Sequence[Ints] = (),
    ) -> RankShares:
        """What is known of each of the ranks. Of those `in_doubt` none is blamed: another one may be late.

        `in_kernels` is the share of time of each, usually and lately. `step_s` is how long a step usually
        takes, and `step_time_s` how long each of the newest took, the newest last. Work of ranks `together`
        with others, by place, is launched by one process. `sets` are ways to put ranks together: by place the
        number of the set, as of a node, -1 where it is unknown.
        """
        busy, lately = in_kernels
        known_wait = self.operations[ranks] >= _FEWEST_OPERATIONS
        known_peers = (self.peer_operations[ranks] > 0) & ~in_doubt[ranks]
        # What operations add up to may be more than the time that there was; their waiting alike.
        summed = np.where(self.kernels[ranks] > 0, self.kernels[ranks], np.nan)
        real = np.nan_to_num(np.fmin(busy / summed, 1.0), nan=1.0)
        wait = np.where(known_wait, np.fmin(real * self.wait[ranks], busy), np.nan)
        losses = LateRankLosses(self._judged, self._world, step_s, inside=self._inside)
        window, lateness = self._lateness(losses, step_s)
        late = _Late.of(lateness)
        known_peers &= ~late.by_each_other(self._roles)[ranks]
        gains = gains_of_late(losses, window, late.caused, step_time_s, together)
        of_peers = {one.name: getattr(gains, one.name) for one in fields(gains)}
        of_peers |= {"last_ratio": late.last, "persistence_ratio": late.persistence}
        reported = {name: np.where(known_peers, every[ranks], np.nan) for name, every in of_peers.items()}
        if step_s is None and np.isfinite(busy).any():
            # Before steps are seen, only the usual share of time is known to be training.
            reported["gain_ratio"] = np.minimum(reported["gain_ratio"], np.nanmax(busy))
        # No rank waits for longer than it is in kernels. The loss is current if it has changed, and relative
        # to the usual step, which may be shorter than the current ones.
        longer, waited = _longer(step_time_s, step_s), np.nan_to_num(late.lost[ranks])
        most = np.nan_to_num(np.fmax(busy, lately), nan=1.0) * longer
        peers = peers_of(np.where(np.isfinite(reported["gain_ratio"]), self._roles[ranks], -1))
        columns = reported | {
            "slowdown_ratio": by_peers(np.maximum(0.0, 1 - np.fmin(waited, most)), peers, np.divide),
            "excess_ratio": by_peers(-waited / longer, peers, np.subtract),
            "seen_ratio": self.seen[ranks],
        }
        late_sets = []
        for of_place in sets:
            recent = losses.waits_of_peers(RECENT)
            held = partial(losses.waits_of_peers, ALL_HELD)
            lost = partial(_more_lost, losses, self._roles)
            found = late_ranks_together(recent, held, of_place, step_time_s, self._waits, lost)
            late_sets.append([one for one in found if known_peers[np.isin(ranks, one.places)].all()])
        return RankShares(ranks, busy, wait, columns, late_sets)

    def _lateness(self, losses: LateRankLosses, step_s: float | None) -> tuple[AnalysisWindow, Lateness]:
        """Over as much time as it takes to see a late rank."""
        recent = losses.caused(RECENT)
        always = _stands_out(recent)
        if always.any() and not _began_within(recent, always):
            return RECENT, losses.lateness(RECENT)
        if step_s is not None and possible(losses.caused(NEWEST)):
            found = onset(losses.lateness(EARLIER), self._peers(), step_s)
            if found is not None:
                return replace(EARLIER, reported=found.at_least.shape[1]), found
        if always.any():
            return RECENT, losses.lateness(RECENT)
        return LONG, losses.lateness(LONG)

    def _peers(self) -> Ints:
        """How many ranks the smallest group of each has."""
        peers = np.full(self._world, self._world)
        for stack, judged in self._judged:
            if stack.matched and stack.ranks.shape[1] > 1:
                np.minimum.at(peers, stack.ranks[judged], stack.ranks.shape[1])
        return peers

    def _by_rank(self, ranks: Ints, values: Floats | Ints) -> Floats:
        summed = np.bincount(ranks.ravel(), weights=values.ravel(), minlength=self._world)
        return np.asarray(summed, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Late:
    """Lateness by rank over all blocks; NaN is unknown."""

    caused: Floats
    """What its peers wait for each rank, more than for each other."""
    last: Floats
    """Its share of all that they wait."""
    persistence: Floats
    lost: Floats
    """What others cost each rank."""

    def by_each_other(self, roles: Ints) -> Bools:
        """Which ranks are last for all of their peers, as these are for them: each in other communicators."""
        last = (self.last >= THRESHOLDS.straggler_share_ratio) & (
            self.persistence >= THRESHOLDS.straggler_block_persistence_ratio
        )
        known = roles >= 0
        peers = np.bincount(roles[known], minlength=1)
        late = np.bincount(roles[known & last], minlength=len(peers))
        return np.asarray(known & ((peers > 1) & (late == peers))[roles])

    @classmethod
    def of(cls, late: Lateness) -> _Late:
        among, caused = np.nansum(late.among, axis=1), late.caused()
        return cls(
            caused=np.maximum(caused, 0.0),
            last=np.nansum(late.at_most, axis=1) / np.where(among > 0, among, np.nan),
            persistence=late.persistence(THRESHOLDS.straggler_certain_wait_ratio / 2),
            lost=mean(late.waits, axis=1),
        )


def _more_lost(losses: LateRankLosses, roles: Ints) -> Floats:
    """By place, what it waits in recent steps beyond what is usual of its role."""
    lost = np.nan_to_num(mean(losses.lateness(RECENT).waits, axis=1))
    return by_peers(lost, peers_of(roles), np.subtract)


def _longer(step_time_s: Floats, step_s: float | None) -> float:
    """Current steps over the usual step, at least 1."""
    return float(np.fmax(1.0, median(step_time_s[-_NEWEST:]) / (step_s or np.inf)))


def _stands_out(late: CausedLosses) -> Bools:
    """(world,): whether a rank is late in nearly all blocks, and costs enough."""
    half = THRESHOLDS.straggler_certain_wait_ratio / 2
    persistent = late.persistence(half) >= THRESHOLDS.straggler_block_persistence_ratio
    return np.asarray(persistent & (late.caused() >= THRESHOLDS.straggler_certain_wait_ratio))


def _began_within(late: CausedLosses, always: Bools) -> bool:
    """Whether those ranks were next to on time in some block: then the steps since it ended show them better.

    A window of which a fault fills a part is neither that of the fault nor that of the job before.
    """
    least = np.fmin.reduce(late.at_least[always], axis=1)
    return bool((least < _ON_TIME_RATIO * late.caused()[always]).any())
