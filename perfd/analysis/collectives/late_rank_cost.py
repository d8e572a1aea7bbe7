"""What ranks lose by one that comes late: at least, and at most, block by block of recent steps.

Waiting in NCCL's kernels is not what is lost. Where the program needs a collective's result at once (tensor,
context and expert parallelism), a rank that waits does nothing else, and the waits of a step add up. But the
gradients of a step are reduced beside the backward pass, and a rank that is a little behind is a little
behind for every bucket: the same lag is waited for dozens of times, and computed through meanwhile. Then a
step has lost at least its longest wait, and at most their sum. On two H200 a lag of half a percent made 25
waits of a step add up to 14% of it, and one of ten percent to half of it.

Steps are put into blocks to distinguish a rank that is always late from many that are late in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from perfd.analysis.collectives.step_losses import AnalysisWindow, StepPeriod, StepShape, lag_at_end
from perfd.analysis.counterfactual import (
    WaitsOfPeers,
    excess_by_step,
    gains_by_step,
    late_steps,
    latest_excess_by_step,
    trimmed_mean,
)
from perfd.analysis.data.job_data import Bools, Floats, Ints
from perfd.analysis.data.robust_stats import mean, median
from perfd.analysis.operations.communicator_waits import CommunicatorBatch

RECENT, LONG = AnalysisWindow(newest_s=5.0), AnalysisWindow(newest_s=30.0)
"""How much time is judged: a rank that has just become slow shows in the first, one that stalls now and then
in the second."""
ALL_HELD = AnalysisWindow(each=1000)
"""All operations in the table, step by step."""
_GATHERING = "AllGather"
"""Its result is needed within the step, so that no rank catches up in a later one."""
_ALL = 4
"""Columns of `Lateness`."""
NEEDED_AT_ONCE = frozenset({"tp", "cp", "ep"})
"""Dimensions whose collectives the next kernel waits for."""


@dataclass(frozen=True, slots=True)
class CausedLosses:
    """By rank and block, the newest block last, as shares of time; NaN is unknown."""

    at_least: Floats
    """(world, blocks): what each rank costs its peers, without what they wait for another one as well, beyond
    what they cost each other."""

    def caused(self) -> Floats:
        """The median over blocks of what the peers lose at least: a pause or two do not count."""
        return median(self.at_least, axis=1)

    def persistence(self, least: float) -> Floats:
        """The share of blocks in which the peers lose at least so much.

        Of the blocks that are known of any rank: one that is seen for less long is not late for longer.
        """
        known = np.isfinite(self.at_least)
        blocks = np.where(known.any(axis=1), known.any(axis=0).sum(), 0)
        late = (self.at_least >= least).sum(axis=1)
        return np.asarray(np.where(blocks > 0, late / np.maximum(blocks, 1), np.nan))


@dataclass(frozen=True, slots=True)
class Lateness(CausedLosses):
    """The same, with what else is known of these blocks."""

    at_most: Floats
    """(world, blocks): what its peers lose by each rank, if they compute nothing meanwhile."""
    among: Floats
    """(world, blocks): the same, whoever of its groups is late."""
    waits: Floats
    """(world, blocks): what each rank itself loses at least by others, in collectives."""


class LateRankLosses:
    """What is lost in the newest operations of all communicators, as much of them as one looks at.

    These are groups of peers, and pairs that send and receive, whose waiting counts without blame.
    Over several communicators of a rank, operations that are needed at once add up; of the others the one
    that shows most counts, because all of them show the same lag.
    """

    def __init__(
        self,
        judged: Sequence[tuple[CommunicatorBatch, Bools]],
        world: int,
        step_s: float | None,
        *,
        inside: Sequence[tuple[CommunicatorBatch, Bools]] = (),
    ) -> None:
        """Of each stack those communicators that are flagged; `step_s` is how long a step takes.

        `judged` join peers, or are pairs; `inside` join ranks with different work, whose waiting for each
        other blames no rank.
        """
        self._sources = [_Source.of(stack, flags, world, step_s) for stack, flags in judged]
        self._sources += [
            _Source.of(stack, flags, world, step_s, peers=False) for stack, flags in inside if flags.any()
        ]
        self._world = world
        self._step_s = step_s
        self._shapes: dict[tuple[int, AnalysisWindow], list[StepShape]] = {}
        """By place of a source and window, of which the same few are looked at again and again."""

    def caused(self, window: AnalysisWindow) -> CausedLosses:
        """Only what is lost by whom, which costs less to know."""
        return CausedLosses(self._columns(window, 1)[0].T)

    def lateness(self, window: AnalysisWindow) -> Lateness:
        """All that is known."""
        return Lateness(*self._columns(window, _ALL).transpose(0, 2, 1))

    def gains(
        self,
        window: AnalysisWindow,
        places: Ints,
        step_time_s: Floats,
        *,
        at_most: bool = False,
        over: int = 0,
    ) -> tuple[Floats, Floats]:
        """(k,): the share of a step that the job would gain if each rank were like its peers, and its error.

        The share is a lower bound, or with `at_most` an upper one; the standard error is from the scatter of
        steps. `step_time_s` has one entry per step, the newest last; if empty, the usual step time is used.
        The newest steps of a window without blocks that are `over` do not count.
        """
        at_once, beside, variance, error = (np.zeros(len(places)) for _ in range(4))
        lasting_s = step_time_s[: max(0, len(step_time_s) - over)]
        for source, shape in self._in(window):
            waits = source.waits_of(shape, places, at_most=at_most)
            waited_s = waits.waited_s[:, : waits.waited_s.shape[1] - over]
            if not waited_s.size:
                continue
            blocks = shape.blocks - over
            per_s = source.per_s(shape)[waits.communicators]
            if self._step_s is not None and len(lasting_s):
                lasted_s = trimmed_mean(lasting_s[over - shape.steps :], min(blocks, len(lasting_s)))
                per_s = per_s * self._step_s / lasted_s
            gained_s, error_s = gains_by_step(waited_s, waits.members)
            share, of_share = trimmed_mean(gained_s, blocks) * per_s, error_s * per_s
            if shape.needed_at_once or at_most:
                np.add.at(at_once, waits.places, np.nan_to_num(share))
                np.add.at(variance, waits.places, np.nan_to_num(of_share) ** 2)
                continue
            for place, ratio, of_ratio in zip(waits.places, share, of_share, strict=True):
                if ratio > beside[place]:
                    beside[place], error[place] = ratio, of_ratio
        return at_once + beside, np.sqrt(variance + error**2)

    def step_time_s(self, window: AnalysisWindow, step_time_s: Floats) -> float:
        """The mean of the steps that a window has of groups of peers; NaN where it is unknown."""
        steps = max((shape.steps for _, shape in self._in(window)), default=0)
        return float(mean(step_time_s[max(0, len(step_time_s) - steps) :]))

    def late_steps(self, place: int) -> tuple[Bools, Bools]:
        """Of each step that is held, the newest last, whether the rank was late for its peers.

        And whether another one was, by half and more of what is usual for this one now.
        """
        own_s, others_s = list[Floats](), list[Floats]()
        for source, shape in self._in(ALL_HELD):
            if shape.needed_at_once:
                continue
            waits = source.waits_of(shape, np.array([place]))
            if len(waits.places):
                first = waits.waited_s[:1], waits.members[:1]
                own_s += [excess_by_step(*first)[0]]
                others_s += [latest_excess_by_step(*first)[0]]
        return late_steps(own_s), late_steps(others_s, own_s)

    def waits_of_peers(self, window: AnalysisWindow) -> list[WaitsOfPeers]:
        """What all members of each communicator of peers wait, step by step."""
        found = []
        for source, shape in self._in(window):
            ranks = source.stack.ranks[shape.rows]
            waits = source.waits_of(shape, ranks[:, 0])
            first = waits.members == 0
            rows, waited_s = waits.communicators[first], waits.waited_s[first]
            found.append(WaitsOfPeers(ranks[rows], waited_s, source.per_s(shape)[rows], shape.blocks))
        return found

    def _in(self, window: AnalysisWindow, *, others: bool = False) -> Iterator[tuple[_Source, StepShape]]:
        """What is looked at of groups of peers; with `others` also of those in which no rank can be late."""
        for place, source in enumerate(self._sources):
            if source.of_peers or others:
                if (place, window) not in self._shapes:
                    self._shapes[place, window] = source.rhythm.shapes(window)
                yield from ((source, shape) for shape in self._shapes[place, window])

    def _columns(self, window: AnalysisWindow, columns: int) -> Floats:
        """(columns, blocks, world): the first columns of `Lateness`."""
        shapes = list(self._in(window, others=columns == _ALL))
        blocks = max((shape.blocks for source, shape in shapes if source.of_peers), default=0)
        if not blocks:
            return np.empty((columns, 0, self._world))
        at_once = np.zeros((columns, blocks, self._world))
        beside = np.full(at_once.shape, np.nan)
        known: Bools = np.zeros(at_once.shape[1:], dtype=np.bool_)
        for source, shape in shapes:
            # Of pairs more blocks may be known, in which no rank can be late.
            part = source.part(shape.newest(blocks), columns)
            reported, newest = slice(-len(part.values), None), slice(-part.values.shape[1], None)
            if source.of_peers:
                part.mark(known[newest])
            if shape.needed_at_once:
                part.add_to(at_once[reported, newest])
            else:
                part.raise_to(beside[reported, newest])
        total: Floats = np.add(at_once, beside, out=at_once, where=~np.isnan(beside))
        if not known.all():
            total[:, ~known] = np.nan
        return total


@dataclass(frozen=True, slots=True)
class _Part:
    """Communicators of one shape, in the newest blocks."""

    ranks: Ints
    """(members,), of one communicator after the other"""
    place: Ints | None
    """Which member each rank is, if all are one once, as in the groups of one dimension; else None."""
    values: Floats
    """(columns, blocks, members); NaN is unknown."""
    whole: bool
    """Whether all are known."""

    def add_to(self, total: Floats) -> None:
        """Add what all communicators of a rank show to (columns, blocks, world)."""
        # One row after the other fits into the processor's cache.
        for row in np.ndindex(total.shape[:2]):
            values = self.values[row] if self.whole else np.nan_to_num(self.values[row])
            if self.place is None:
                total[row] += np.bincount(self.ranks, values, total.shape[2])
            else:
                total[row] += values.take(self.place, mode="clip")

    def raise_to(self, highest: Floats) -> None:
        """Raise (columns, blocks, world) to the largest that any communicator of a rank shows."""
        for row in np.ndindex(highest.shape[:2]):
            if self.place is None:
                np.fmax.at(highest[row], self.ranks, self.values[row])
            else:
                np.fmax(highest[row], self.values[row].take(self.place, mode="clip"), out=highest[row])

    def mark(self, known: Bools) -> None:
        """Say in (blocks, world) of which ranks something is known."""
        if self.whole and self.place is not None:
            known[:] = True
            return
        block, member = np.nonzero(np.isfinite(self.values[0]))
        known[block, self.ranks[member]] = True


@dataclass(frozen=True, slots=True)
class _Waits:
    """Waits in communicators, with one entry per member that is considered."""

    communicators: Ints
    """(k,): the index of the communicator in its shape."""
    places: Ints
    """(k,): the index of the member in the requested places."""
    members: Ints
    """(k,): the index of the member in the communicator."""
    waited_s: Floats
    """(k, steps, g): how long each of the g members waits, in seconds; NaN if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A stack's communicators that are judged."""

    stack: CommunicatorBatch
    rhythm: StepPeriod
    place: Ints | None
    """As in `_Part`, of all communicators of the stack."""
    step_s: float | None
    of_peers: bool
    """Whether a late rank causes the waiting."""

    @classmethod
    def of(
        cls,
        stack: CommunicatorBatch,
        judged: Bools,
        world: int,
        step_s: float | None,
        *,
        peers: bool = True,
    ) -> _Source:
        """Those of a stack that are `judged`; `peers` says whether their ranks have the same work."""
        needed = stack.distinct_names & NEEDED_AT_ONCE
        at_once: Bools = np.full(len(judged), not stack.matched or bool(needed))
        if stack.matched and needed and needed != stack.distinct_names:
            at_once = np.array([name in needed for name in stack.names.tolist()])
        return cls(
            stack=stack,
            rhythm=StepPeriod.of(stack, judged, at_once, step_s),
            place=_place_of_each(stack.ranks.ravel(), world),
            step_s=step_s,
            of_peers=peers and stack.matched,
        )

    def per_s(self, shape: StepShape) -> Floats:
        """(c,): how often a second that is lost which is lost in each step of a shape."""
        if shape.needed_at_once:
            operations = shape.steps * shape.per_step // shape.blocks
            return np.asarray(shape.paces / operations)
        return shape.steps_per_s(shape.per_step, self.step_s)

    def waits_of(self, shape: StepShape, places: Ints, *, at_most: bool = False) -> _Waits:
        """The waits of all members of the shape's communicators that have a rank in `places`.

        Of waits in a step that overlap computation only the longest counts, with `at_most` their sum.
        """
        members = self.stack.ranks[self._rows(shape)]
        by_place = np.full(max(int(members.max()), int(places.max())) + 1, -1)
        by_place[places] = np.arange(len(places))
        chosen = by_place[members] >= 0
        rows, columns = divmod(np.flatnonzero(chosen), chosen.shape[1])
        if not len(rows):
            return _Waits(rows, rows, rows, np.empty((0, shape.steps, members.shape[1])))
        steps = shape.blocks if shape.needed_at_once else shape.steps
        needed, of_row = np.unique(rows, return_inverse=True)
        last, wait_s = self._newest(shape, shape.rows[needed])
        last = last.reshape(len(needed), steps, -1)
        wait_s = wait_s.reshape(*last.shape, -1)
        known = (last >= 0)[..., None]
        if shape.needed_at_once or at_most:
            waited = np.where(known, wait_s, 0.0).sum(axis=2)
        elif self.stack.operation == _GATHERING:
            waited = np.where(known, wait_s, 0.0).max(axis=2)
        else:
            waited = lag_at_end(last, np.where(known, wait_s, 0.0))
        waited = np.where(known.any(axis=2), waited, np.nan)
        return _Waits(rows, by_place[members[rows, columns]], columns, waited[of_row])

    def part(self, shape: StepShape, columns: int) -> _Part:
        """The first so many columns of `Lateness`; of pairs the last one alone."""
        last, wait_s, absent = self._operations(shape)
        if self.of_peers:
            by_step = shape.losses(last, wait_s, self.step_s, columns=columns)
        else:
            by_step = shape.waits(wait_s, self.step_s)[None]
        if absent is not None:
            by_step[:, absent] = np.nan
        rows = self._rows(shape)
        return _Part(
            ranks=self.stack.ranks[rows].ravel(),
            place=self.place if isinstance(rows, slice) else None,
            values=_in_blocks(by_step.reshape(*by_step.shape[:2], -1), shape.blocks),
            whole=absent is None,
        )

    def _operations(self, shape: StepShape) -> tuple[Ints, Floats, Bools | None]:
        """Last ranks and waiting as `StepShape.losses` takes them, and which steps, (steps, c), lack them."""
        # Where waits add up, a block is as good as a step.
        steps = shape.blocks if shape.needed_at_once else shape.steps
        last, wait_s = self._newest(shape, self._rows(shape))
        grid = (len(last), steps, last.shape[1] // steps)
        matched = last >= 0
        absent: Bools | None = None
        if not matched.all():
            last, wait_s = np.maximum(last, 0), np.where(matched[..., None], wait_s, 0.0)
            absent = np.logical_not(matched.reshape(grid).any(axis=2)).T
        return last.reshape(grid), wait_s.reshape(*grid, -1), absent

    def _newest(self, shape: StepShape, rows: slice | Ints) -> tuple[Ints, Floats]:
        """Last ranks and waiting of the newest operations of these communicators."""
        taken = slice(shape.length - shape.steps * shape.per_step, shape.length)
        return self.stack.parts.last_arriver[rows, taken], self.stack.parts.wait_s[rows, taken]

    def _rows(self, shape: StepShape) -> slice | Ints:
        """All of them are a view, which costs nothing."""
        return slice(None) if len(shape.rows) == len(self.stack.ranks) else shape.rows


def _in_blocks(by_step: Floats, blocks: int) -> Floats:
    """(columns, steps, members) to (columns, blocks, members): means over what is known of each block."""
    columns, steps, members = by_step.shape
    if steps == blocks:
        return by_step
    grouped = by_step.reshape(columns, blocks, steps // blocks, members)
    # Looking for what is absent costs more than the mean.
    return mean(grouped, axis=2) if np.isnan(grouped[0]).any() else np.asarray(grouped.mean(axis=2))


def _place_of_each(ranks: Ints, world: int) -> Ints | None:
    if len(ranks) != world:
        return None
    place = np.full(world, -1)
    place[ranks] = np.arange(world)
    return None if place.min() < 0 else place
