"""How the operations of communicators are laid out in steps, by rates and sizes, and what each step loses.

(c, steps, operations) are the operations of c communicators in steps, and g their ranks. Losses have the
steps first, so that one step of all ranks is side by side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from perfd.analysis.data.job_data import Bools, CollectiveStack, Floats, Ints
from perfd.analysis.data.robust_stats import mean
from perfd.analysis.operations.communicator_waits import CommunicatorBatch

MOST_BLOCKS = 10
"""Steps required at most: with two ranks so many rule out chance (`_CHANCE`)."""
_FEWEST_STEPS = 5
"""Steps required at least, however many ranks there are. Chosen."""
_CHANCE = 0.002
"""That one rank is the last in all blocks although each is as likely to be."""
_START_UP_STEPS = 3
"""A job's first steps, which compile and allocate: they are not counted. Chosen."""
_NEAR = 0.25
"""As exactly are operations a step known by the pace of operations and of steps."""
_FEW_OPERATIONS = 12
"""In a step; of fewer, a spare one would be too large a part. Chosen."""
_LONGEST_PERIOD = 300
"""Operations in a step whose pattern is searched for: the work grows with the square. Chosen."""
_ALIKE = 0.95
"""Share of sizes that a period repeats: an evaluation interrupts the pattern. Chosen."""
_EXCUSED = 0.1
"""So many members of a group may be slow together without excusing each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisWindow:
    """How much of the newest operations is looked at: so much time, or so many steps."""

    newest_s: float = 0.0
    """In at least as many steps, and as many blocks, as it takes to rule out chance."""
    each: int | None = None
    """So many steps at most, and each is a block."""
    reported: int | None = None
    """Only the newest so many blocks of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """Of communicators that do alike."""

    rows: Ints
    """Which of the stack they are."""
    paces: Floats
    """Operations a second of each, those that are not in the table included."""
    length: int
    """Operations in the table."""
    per_step: int
    """Of those."""
    keep: int
    """One in so many is in the table."""
    steps: int
    """That are judged, the newest: a multiple of the blocks."""
    blocks: int
    needed_at_once: bool

    def newest(self, blocks: int) -> StepShape:
        """The same without the blocks before the newest so many."""
        kept = min(blocks, self.blocks)
        return replace(self, steps=self.steps // self.blocks * kept, blocks=kept)

    def losses(self, last: Ints, wait_s: Floats, step_s: float | None, *, columns: int) -> Floats:
        """(columns, steps, c, g): the first `columns` columns of `late_rank_cost.Lateness`.

        `last` is the last rank of each operation, and `wait_s` (..., g) what each waited for it; zeros where
        it is unknown.
        """
        groups, steps, operations, ranks = wait_s.shape
        of_others = _of_next(wait_s)
        total = _summed(last, of_others, ranks)
        total *= (self.paces / operations)[:, None]
        least = total
        if not self.needed_at_once:
            least = _longest(last, of_others, ranks)
            least *= self.steps_per_s(operations, step_s)[:, None]
        by_step = np.empty((columns, steps, groups, ranks))
        # Where all are late in turn, none is to blame.
        np.subtract(_of_all(least), least, out=by_step[0])
        by_step[0] /= max(1, ranks - 1)
        np.subtract(least, by_step[0], out=by_step[0])
        if columns > 1:
            by_step[1], by_step[2], by_step[3] = total, _of_all(total), self.waits(wait_s, step_s)
        return by_step

    def waits(self, wait_s: Floats, step_s: float | None) -> Floats:
        """(steps, c, g): what others cost each rank."""
        groups, steps, operations, ranks = wait_s.shape
        # Operation by operation, and in the order of the result, since numpy's own loops over a short axis
        # cost more than the sums.
        lost = np.zeros((steps, groups, ranks))
        combined = np.add if self.needed_at_once else np.maximum
        for own in wait_s.transpose(2, 1, 0, 3):
            combined(lost, own, out=lost)
        often = self.paces / operations if self.needed_at_once else self.steps_per_s(operations, step_s)
        lost *= often.repeat(ranks).reshape(-1, ranks)
        return lost

    def steps_per_s(self, operations: int, step_s: float | None) -> Floats:
        """(c,): what happens less often than once a step is not lost in every step."""
        if step_s:
            return np.asarray(np.minimum(1 / step_s, self.paces))
        return np.asarray(self.paces / operations / self.keep)


def fewest_blocks(ranks: int) -> int:
    """How many blocks must point at one of so many ranks before that is hardly chance."""
    against_chance = 1 + math.ceil(-math.log(_CHANCE) / math.log(max(2, ranks)))
    return min(MOST_BLOCKS, max(_FEWEST_STEPS, against_chance))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPeriod:
    """How often communicators of one size do what, however much of it is looked at."""

    rows: Ints
    """Which of the stack they are."""
    lengths: Ints
    """Operations of each in the table."""
    before: Floats
    """How many more would be in the table if all since the job's start were."""
    paces: Floats
    """Operations a second, those that are not in the table included."""
    keep: Ints
    """One in so many is in the table."""
    periods: Ints
    """After how many in the table the sizes repeat, 0 if they do not or if it is not needed."""
    at_once: Bools
    """Whether they are needed at once."""
    fewest: int
    """Blocks."""
    step_s: float | None

    @classmethod
    def of(
        cls, stack: CommunicatorBatch, judged: Bools, needed_at_once: Bools, step_s: float | None
    ) -> StepPeriod:
        """Of those of a stack that are `judged` and of which enough operations are known."""
        of_all, fewest = stack.collectives, fewest_blocks(stack.ranks.shape[1])
        rows = np.flatnonzero(judged & (of_all.lengths >= fewest))
        paces = _paces(of_all, rows)
        rows, paces = rows[paces > 0], paces[paces > 0]
        lengths, at_once = of_all.lengths[rows], needed_at_once[rows]
        first, last = of_all.sequence[rows, 0], of_all.sequence[rows, lengths - 1]
        keep = np.maximum(1, np.rint((last - first) / np.maximum(lengths - 1, 1))).astype(np.int64)
        periods = np.zeros(len(rows), dtype=np.int64)
        periods[~at_once] = _periods(of_all.size_bytes, rows[~at_once], lengths[~at_once])
        return cls(
            rows=rows,
            lengths=lengths,
            before=first / keep,
            paces=paces,
            keep=keep,
            periods=periods,
            at_once=at_once,
            fewest=fewest,
            step_s=step_s,
        )

    def shapes(self, window: AnalysisWindow) -> list[StepShape]:
        """What is looked at of them, by shape.

        Left out are those with too few known steps to rule out chance, and those whose steps are unknown.
        """
        if not len(self.rows):
            return []
        fewest, each, kept_per_s = self.fewest, window.each, self.paces / self.keep
        per_step = self._per_step(window, kept_per_s)
        in_step = np.maximum(1.0, kept_per_s * self.step_s) if self.step_s else per_step
        wanted = np.maximum(fewest, np.ceil(window.newest_s * kept_per_s / per_step)).astype(np.int64)
        if each is not None:
            wanted = np.full(len(self.rows), each)
        steps = np.minimum(_settled(self.lengths, self.before, in_step) // per_step, wanted)
        enough = steps >= np.where(self.at_once, fewest, np.minimum(2 * fewest, wanted))
        if each is None:
            steps -= steps % fewest
        columns = np.stack([self.lengths, per_step, self.keep, steps, self.at_once.astype(np.int64)])
        blocks = None if each else fewest
        shapes = [
            _shape(columns[:, alike[0]], rows=self.rows[alike], paces=self.paces[alike], blocks=blocks)
            for alike in _alike(columns, np.flatnonzero(enough))
        ]
        return shapes if window.reported is None else [shape.newest(window.reported) for shape in shapes]

    def _per_step(self, window: AnalysisWindow, kept_per_s: Floats) -> Ints:
        """Operations of a step of each, or of a block; more than there are where that is unknown."""
        step_s, spare = self.step_s, window.each is None
        # Where every wait is lost, it does not matter where a step begins, but a block should hold one.
        block_s = max(window.newest_s / self.fewest if spare else 0.0, step_s or 0.0)
        per_step = np.clip(_rounded(kept_per_s * block_s), 1, self.lengths // self.fewest)
        beside = np.flatnonzero(~self.at_once)
        found = self.periods[beside]
        if step_s is not None:
            found = _operations_per_step(found, kept_per_s[beside] * step_s, spare=spare)
        per_step[beside] = np.where(found > 0, found, self.lengths.max() + 1)
        return np.asarray(per_step)


def _settled(lengths: Ints, before: Floats, in_step: Floats | Ints) -> Ints:
    """How many of the operations are not of a job's first steps; `before` are those that are not held."""
    starting = np.ceil(_START_UP_STEPS * in_step - before)
    return lengths - np.clip(starting, 0, lengths).astype(np.int64)


def _shape(column: Ints, *, rows: Ints, paces: Floats, blocks: int | None) -> StepShape:
    """Of communicators that have this column in common; each step is a block if nothing else is said."""
    length, per_step, keep, steps, at_once = column.tolist()
    return StepShape(
        rows=rows,
        paces=paces,
        length=length,
        per_step=per_step,
        keep=keep,
        steps=steps,
        blocks=steps if blocks is None else blocks,
        needed_at_once=bool(at_once),
    )


def _alike(columns: Ints, chosen: Ints) -> list[Ints]:
    """The chosen places by what they have in all columns."""
    if not len(chosen):
        return []
    own = columns if len(chosen) == columns.shape[1] else columns[:, chosen]
    if (own == own[:, :1]).all():
        return [chosen]
    _, group = np.unique(own, axis=1, return_inverse=True)
    return [chosen[group.ravel() == number] for number in range(int(group.max()) + 1)]


def _paces(collectives: CollectiveStack, rows: Ints) -> Floats:
    paces = collectives.operations_per_s[rows]
    for place in np.flatnonzero(np.isnan(paces)).tolist():
        paces[place] = _pace(collectives, int(rows[place]))
    return paces


def _pace(collectives: CollectiveStack, row: int) -> float:
    """By the time in kernels, if operations were not counted."""
    usual_s = float(mean(collectives.durations_s[row, : collectives.lengths[row]].ravel()))
    return float(np.mean(collectives.kernel_ratio[row])) / usual_s if usual_s > 0 else 0.0


def _operations_per_step(periods: Ints, expected: Floats, *, spare: bool) -> Ints:
    """How many to take for those of one step, rather too many than too few, by pace and period.

    Without `spare` few are not made more: then some may miss the one that is waited for.
    """
    more = np.where(expected < 1 + _NEAR, 1, _rounded((1 + _NEAR) * expected))
    if not spare:
        few = np.maximum(1, np.ceil(expected - _NEAR)).astype(np.int64)
        more = np.where(expected < _FEW_OPERATIONS, few, more)
    periodic = (periods > 1) & (np.abs(periods / expected - 1) <= _NEAR)
    return np.where(periodic, periods, more)


def _rounded(numbers: Floats) -> Ints:
    """Up, to about 5%, so that communicators that do alike are worked on together."""
    exact = np.maximum(numbers, 1e-9)
    rounded = exact - 1e-6
    many = np.flatnonzero(exact >= 10)
    rounded[many] = np.exp(np.ceil(10 * np.log(exact[many]) - 1e-6) / 10)
    return np.ceil(rounded).astype(np.int64)


def _periods(sizes: Floats, rows: Ints, lengths: Ints) -> Ints:
    """After how many operations the sizes repeat, 0 if they do not: those of a step have different ones."""
    periods = np.zeros(len(rows), dtype=np.int64)
    for length in np.unique(lengths).tolist():
        alike = np.flatnonzero(lengths == length)
        periods[alike] = _period(sizes[rows[alike], max(0, length - 3 * _LONGEST_PERIOD) : length])
    return periods


def _period(sizes: Floats) -> Ints:
    """The same of rows that are equally long."""
    periods = np.zeros(len(sizes), dtype=np.int64)
    for period in range(1, sizes.shape[1] // 3 + 1):
        rows = np.flatnonzero(periods == 0)
        if not len(rows):
            break
        repeated = (sizes[rows, period:] == sizes[rows, :-period]).mean(axis=1) >= _ALIKE
        periods[rows[repeated]] = period
    return np.where(np.isfinite(sizes).all(axis=1), periods, 0)


def _of_all(by_rank: Floats) -> Floats:
    """(steps, c, 1): the sum over ranks; one product, since over a short axis numpy's own sum is slow."""
    ranks = by_rank.shape[-1]
    summed = by_rank.reshape(-1, ranks) @ np.ones((ranks, 1))
    return np.asarray(summed.reshape(*by_rank.shape[:-1], 1))


def _of_next(wait_s: Floats) -> Floats:
    """What is lost by the last rank of each operation: what the next one before it waits.

    Had the last one not been late, the others would still have waited for that one. In a large group it is
    the one after a tenth, so that several slow ranks do not excuse each other.
    """
    place = max(1, round(_EXCUSED * (wait_s.shape[-1] - 1)))
    if place > 1:
        return np.partition(wait_s, place, axis=-1)[..., place]
    # Column by column, as in `perfd.analysis.operations.communicator_waits`.
    columns = np.ascontiguousarray(np.moveaxis(wait_s, -1, 0))
    least, following = columns[0], np.full(columns.shape[1:], np.inf)
    for own in columns[1:]:
        following = np.minimum(following, np.maximum(least, own))
        least = np.minimum(least, own)
    return np.where(np.isfinite(following), following, 0.0)


def _summed(last: Ints, of_others: Floats, ranks: int) -> Floats:
    """(steps, c, g): what the others waited while each rank was the last, summed over a step."""
    groups, steps, _ = last.shape
    group, step, _ = np.ogrid[:groups, :steps, :1]
    place = (step * groups + group) * ranks + last
    summed = np.bincount(place.ravel(), of_others.ravel(), minlength=steps * groups * ranks)
    return np.asarray(summed, dtype=np.float64).reshape(steps, groups, ranks)


def _longest(last: Ints, of_others: Floats, ranks: int) -> Floats:
    """The same, the longest of a step."""
    groups, steps, operations = last.shape
    longest = np.zeros((steps, groups, ranks))
    group, step = np.ogrid[:groups, :steps]
    for operation in range(operations):
        place = (step, group, last[:, :, operation])
        longest[place] = np.maximum(longest[place], of_others[:, :, operation])
    return longest


def lag_at_end(last: Ints, wait_s: Floats) -> Floats:
    """(k, steps, g): the longest wait of a step, less what the rank that caused it waits itself later in it.

    By so much it has caught up since: not the rank was late, but its NCCL kernel waited for a multiprocessor.
    `last` (k, steps, operations) is the last rank of each operation, `wait_s` (..., g) what each waited.
    """
    later = np.maximum.accumulate(wait_s[:, :, ::-1], axis=2)[:, :, ::-1][:, :, 1:]
    made_up = np.take_along_axis(later, np.maximum(last, 0)[:, :, :-1, None], axis=3)
    wait_s = wait_s.copy()
    wait_s[:, :, :-1] -= made_up
    return np.asarray(np.maximum(wait_s.max(axis=2), 0.0))
