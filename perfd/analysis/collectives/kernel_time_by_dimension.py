"""The time that ranks spend in NCCL's kernels, by the parallel dimension that a communicator serves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Bools, Floats, Ints
from perfd.analysis.layout import PAIR_OPERATION, dimension_name
from perfd.analysis.operations.communicator_waits import CommunicatorBatch
from perfd.model import ParallelLayout

_FEWEST_OPERATIONS = 20
"""Fewer matched operations say nothing of waiting."""
_MOST_UNMATCHED = 0.1
"""Of a dimension's time: with more in operations that could not be matched, its waiting is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclDimension:
    """Time in NCCL's kernels for one dimension, as shares of all time: means over all ranks."""

    group: str | None
    """`tp`, `cp`, `dp`, `ep`, `pp` or `world`; None of communicators that fit none of them."""
    share_ratio: float
    transfer_ratio: float | None
    wait_ratio: float | None


class DimensionTally:
    """Time in kernels by dimension and place of a rank, summed over communicators."""

    def __init__(self, world: int, parallel: ParallelLayout) -> None:
        self._world = world
        self._parallel = parallel
        self._parts: dict[str | None, _Part] = {}
        self._longest: Floats = np.zeros(world)
        """The most time that a rank spends in one pair's sends and receives."""

    def add(self, stack: CommunicatorBatch, matched: Bools, waits: Floats) -> None:
        """Add all communicators of a stack: which of them are matched, and how long their ranks wait."""
        ratios = np.nan_to_num(stack.kernel_ratio)
        collective = stack.operation != PAIR_OPERATION
        if not collective:
            np.maximum.at(self._longest, stack.ranks.ravel(), ratios.ravel())
        alone = len(stack.distinct_names) == 1
        for name in stack.distinct_names:
            rows = slice(None) if alone else np.flatnonzero(stack.named(name))
            part = self._part(dimension_name(name, self._parallel, stack.operation))
            kernels = self._by_rank(stack.ranks[rows], ratios[rows])
            if collective:
                part.collectives += kernels
            else:
                part.pairs += kernels
            part.timed[stack.ranks[rows]] = True
            part.waits += self._by_rank(stack.ranks[rows], waits[rows])
            reported = matched[rows]
            part.unmatched += float(ratios[rows][~reported].sum())
            part.operations += int(stack.blames.operations[rows].max(initial=0, where=reported))

    def shares(self, ranks: Ints, busy: Floats) -> tuple[NcclDimension, ...]:
        """What is known of each dimension, the largest first; `busy` is each rank's share of time in kernels.

        Where that is NaN, since the times of some communicators are unknown, a dimension counts if
        communicators of all ranks have times. Each collective has its own kernel, and collectives of two
        dimensions may run at one time, so each counts. Sends and receives that are posted together are in one
        kernel: they take what collectives leave of the time with any kernel, and at least what the longest
        pair of ranks takes.
        """
        if not self._parts:
            return ()
        # To pick all of them, as nearly always, takes as long as all the rest.
        places = slice(None) if len(ranks) == self._world else ranks
        pairs: Floats = sum((part.pairs for part in self._parts.values()), np.zeros(self._world))[places]
        others = sum((part.collectives for part in self._parts.values()), np.zeros(self._world))[places]
        whole = bool(np.isfinite(busy).all())
        busy = np.where(np.isfinite(busy), busy, np.fmin(others + self._longest[places], 1.0))
        once = np.clip(busy - others, self._longest[places], pairs)
        real = np.divide(once, pairs, out=np.ones(len(ranks)), where=pairs > 0)
        found = [
            part.dimension(name, places, busy, real)
            for name, part in self._parts.items()
            if whole or part.timed[places].all()
        ]
        return tuple(sorted(found, key=lambda one: (-one.share_ratio, str(one.group))))

    def _part(self, name: str | None) -> _Part:
        if name not in self._parts:
            self._parts[name] = _Part(self._world)
        return self._parts[name]

    def _by_rank(self, ranks: Ints, values: Floats) -> Floats:
        summed = np.bincount(ranks.ravel(), weights=values.ravel(), minlength=self._world)
        return np.asarray(summed, dtype=np.float64)


class _Part:
    """One dimension; arrays are by place of a rank."""

    def __init__(self, world: int) -> None:
        self.collectives: Floats = np.zeros(world)
        self.pairs: Floats = np.zeros(world)
        self.waits: Floats = np.zeros(world)
        self.timed: Bools = np.zeros(world, dtype=np.bool_)
        self.unmatched = 0.0
        self.operations = 0

    def dimension(self, name: str | None, places: Ints | slice, busy: Floats, real: Floats) -> NcclDimension:
        summed = self.collectives[places] + self.pairs[places]
        shares = np.fmin(self.collectives[places] + real * self.pairs[places], busy)
        share = float(shares.mean())
        matched = self.unmatched <= _MOST_UNMATCHED * float(summed.sum())
        if self.operations < _FEWEST_OPERATIONS or not matched:
            return NcclDimension(group=name, share_ratio=share, transfer_ratio=None, wait_ratio=None)
        # What is counted more than once is waited for more than once.
        scale = np.divide(shares, summed, out=np.zeros(len(busy)), where=summed > 0)
        wait = float(np.fmin(scale * self.waits[places], shares).mean())
        return NcclDimension(group=name, share_ratio=share, transfer_ratio=share - wait, wait_ratio=wait)
