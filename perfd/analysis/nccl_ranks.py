"""Waiting by rank: what each waits, what each is waited for, and how much slower than its peers it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd.analysis.robust import median
from perfd.analysis.stacks import Stack
from perfd.analysis.tables import Bools, Floats, Ints

_FEWEST_OPERATIONS = 20
"""Fewer matched operations say nothing of a rank."""
_MOST_RANKS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRank:
    """One rank's time in NCCL's kernels, as shares of all time."""

    rank: int
    busy_ratio: float | None
    """None when only a part of the operations was recorded, or without times on the GPU."""
    wait_ratio: float | None
    """Waiting for the others."""
    caused_ratio: float | None
    """About what each of its peers waited for it, of all time: ranks of its stage only, since a later
    stage is last by design."""
    last_ratio: float | None
    """Its share of all waiting among its peers."""
    slowdown_ratio: float | None = None
    """The time that it does not wait, by that of its peers: 1.2 is 20 % slower."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of time by rank; NaN is unknown."""

    ranks: Ints
    busy: Floats
    wait: Floats
    caused: Floats
    last: Floats
    slowdown: Floats

    def records(self) -> tuple[NcclRank, ...]:
        chosen = np.arange(len(self.ranks))
        if len(chosen) > _MOST_RANKS:
            # A page of 16,384 ranks helps nobody: those at either end are what it is about.
            caused = np.argsort(-np.nan_to_num(self.caused), kind="stable")[: _MOST_RANKS // 2]
            waiting = np.argsort(-np.nan_to_num(self.wait), kind="stable")[: _MOST_RANKS // 2]
            chosen = np.union1d(caused, waiting)
        columns = [
            [None if value != value else value for value in column[chosen].tolist()]  # noqa: PLR0124 - NaN
            for column in (self.busy, self.wait, self.caused, self.last, self.slowdown)
        ]
        return tuple(
            NcclRank(
                rank=rank,
                busy_ratio=busy,
                wait_ratio=wait,
                caused_ratio=caused,
                last_ratio=last,
                slowdown_ratio=slowdown,
            )
            for rank, busy, wait, caused, last, slowdown in zip(
                self.ranks[chosen].tolist(), *columns, strict=True
            )
        )


class Tally:
    """Shares of time by global rank, summed over communicators."""

    def __init__(self, world: int, stages: Ints) -> None:
        self._stages = stages
        self._world = world
        self.wait: Floats = np.zeros(world)
        self.caused: Floats = np.zeros(world)
        self.among_peers: Floats = np.zeros(world)
        """Mean waiting in groups of peers, whoever caused it."""
        self.kernels: Floats = np.zeros(world)
        """Time in kernels, summed over operations: those of one group share a kernel, and streams overlap."""
        self.operations: Floats = np.zeros(world)
        self.peer_operations: Floats = np.zeros(world)

    def add(self, stack: Stack, *, blame: bool) -> None:
        """Add all communicators of a stack.

        Without `blame` only the waiting counts: a receive waits for its turn, which is nobody's fault.
        """
        result = stack.blames
        in_table_s = result.transfer_s[:, None] + result.waited_s
        useful = (result.operations > 0) & in_table_s.any(axis=1)
        useful &= np.isfinite(stack.kernel_ratio).all(axis=1)
        # The operations in the table stand for all of their kind: what they are of the time, by what they
        # are in the table. It is the same for all ranks but for what was lost on the way.
        scale = np.zeros(len(useful))
        scale[useful] = stack.kernel_ratio[useful].mean(axis=1) / in_table_s[useful].mean(axis=1)
        stages = self._stages[stack.ranks]
        peers = useful & (stages == stages[:, :1]).all(axis=1) & (stages[:, 0] >= 0)
        counts = np.where(useful, result.operations, 0)
        self.wait += self._by_rank(stack.ranks, scale[:, None] * result.waited_s)
        self.kernels += self._by_rank(stack.ranks, np.where(useful[:, None], stack.kernel_ratio, 0.0))
        self.operations += self._by_rank(stack.ranks, counts[:, None])
        if not blame:
            return
        scale = np.where(peers, scale, 0.0)
        self.caused += self._by_rank(stack.ranks, scale[:, None] * result.caused_s)
        self.among_peers += self._by_rank(stack.ranks, (scale * result.caused_s.sum(axis=1))[:, None])
        self.peer_operations += self._by_rank(stack.ranks, np.where(peers, counts, 0)[:, None])

    def shares(self, ranks: Ints, busy: Floats, stages: Ints, missing: Ints) -> Shares:
        """What is known of each of the ranks. Where a peer is missing, it may be the one to blame."""
        known_wait = self.operations[ranks] >= _FEWEST_OPERATIONS
        complete = ~np.isin(stages[ranks], stages[missing[missing < self._world]])
        known_peers = (self.peer_operations[ranks] >= _FEWEST_OPERATIONS) & complete
        # What operations add up to may be more than the time that there was; their waiting alike.
        summed = np.where(self.kernels[ranks] > 0, self.kernels[ranks], np.nan)
        real = np.nan_to_num(np.fmin(busy / summed, 1.0), nan=1.0)
        wait = np.where(known_wait, np.fmin(real * self.wait[ranks], busy), np.nan)
        # It is the others' time that a rank causes, so theirs is the measure.
        usual = float(median(real)) if len(real) else 1.0
        caused = np.where(known_peers, usual * self.caused[ranks], np.nan)
        among = np.where(self.among_peers[ranks] > 0, usual * self.among_peers[ranks], np.nan)
        return Shares(ranks, busy, wait, caused, caused / among, self._slowdown(ranks, wait, known_peers))

    def _slowdown(self, ranks: Ints, wait: Floats, known_peers: Bools) -> Floats:
        slowdown = np.full(len(ranks), np.nan)
        for stage in np.unique(self._stages[ranks[known_peers]]):
            peers = known_peers & (self._stages[ranks] == stage)
            typical = float(median(wait[peers]))
            if typical < 1:
                slowdown[peers] = np.maximum(0.0, 1 - wait[peers]) / (1 - typical)
        return slowdown

    def _by_rank(self, ranks: Ints, values: Floats | Ints) -> Floats:
        spread = np.broadcast_to(values, ranks.shape)
        return np.bincount(ranks.ravel(), weights=spread.ravel(), minlength=self._world).astype(np.float64)
