"""What ranks lose by one that comes late: at least, and at most, block by block of recent steps.

Waiting in NCCL's kernels is not what is lost. Where the program needs a collective's result at once (tensor,
context and expert parallelism), a rank that waits does nothing else, and the waits of a step add up. But the
gradients of a step are reduced beside the backward pass, and a rank that is a little behind is a little
behind for every bucket: the same lag is waited for dozens of times, and computed through meanwhile. Then a
step has lost at least its longest wait, and at most their sum. On two H200 a lag of half a percent made 25
waits of a step add up to 14 % of it, and one of ten percent to half of it.

Steps are put into blocks so that somebody who is always late is told from many who are late in turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfd.analysis.robust import MAD_TO_SIGMA, MEDIAN_ERROR, mean, median
from perfd.analysis.stacks import Stack
from perfd.analysis.tables import Bools, CollectiveTable, Floats, Ints
from perfd.analysis.waiting import MATCHED_OPERATIONS

BLOCKS = 10
RECENT_S, LONG_S = 7.0, 30.0
"""How much time is judged: a rank that has just become slow shows in the first, one that stalls now and then
in the second. At least as many steps are judged as it takes to exclude chance."""
_FEWEST_STEPS = 5
_CHANCE = 0.002
"""That one rank is the last in all blocks although each is as likely to be."""
_LONGEST_PERIOD = 300
_ALIKE = 0.95
_NEAR = 0.25
"""As exactly are operations a step known by the pace of operations and of steps."""
_EXCUSED = 0.1
_START_UP_STEPS = 3
NEEDED_AT_ONCE = frozenset({"tp", "cp", "ep"})
"""Dimensions whose collectives the next kernel waits for."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """By rank and block, the newest block last, as shares of time; NaN is unknown."""

    at_least: Floats
    """(world, blocks): what its peers lose by each rank, as far as they do not wait for another one, too, and
    more than they lose by each other."""
    at_most: Floats
    among: Floats
    """(world, blocks): the same at most, whoever of its groups is late."""
    waits: Floats
    """(world, blocks): what each rank itself loses at least by others, in collectives."""

    def caused(self) -> Floats:
        """The median over blocks of what the peers lose at least: a pause or two do not count."""
        return median(self.at_least, axis=1)

    def error(self) -> Floats:
        """The standard error of that median."""
        blocks = np.maximum(np.isfinite(self.at_least).sum(axis=1), 1)
        spread = median(np.abs(self.at_least - self.caused()[:, None]), axis=1)
        return np.asarray(MEDIAN_ERROR * MAD_TO_SIGMA * spread / np.sqrt(blocks))

    def persistence(self, least: float) -> Floats:
        """The share of blocks in which the peers lose at least so much."""
        blocks = np.isfinite(self.at_least).sum(axis=1)
        late = (self.at_least >= least).sum(axis=1)
        return np.asarray(np.where(blocks > 0, late / np.maximum(blocks, 1), np.nan))


def lateness(
    stacks: Sequence[Stack],
    judged: Sequence[Bools],
    world: int,
    *,
    step_s: float | None,
    newest_s: float = RECENT_S,
) -> Lateness:
    """Of the newest operations of all communicators that are `judged`, a flag each.

    These are groups of peers, and pairs that send and receive, whose waiting counts but is nobody's fault.
    Over several communicators of a rank, what is needed at once adds up; of the rest the one that shows most
    counts, because the same lag is seen in all of them.
    """
    at_once = np.zeros((4, world * BLOCKS))
    beside = np.full((4, world * BLOCKS), np.nan)
    known: Bools = np.zeros(world * BLOCKS, dtype=np.bool_)
    for stack, flags in zip(stacks, judged, strict=True):
        for part in _parts(stack, flags, _Time(step_s, newest_s)):
            place = (part.ranks[:, :, None] * BLOCKS + np.arange(BLOCKS)).ravel()
            if stack.operation not in MATCHED_OPERATIONS:
                at_once[3] += np.bincount(place, np.nan_to_num(part.values[3]).ravel(), minlength=len(known))
                continue
            known[place[np.isfinite(part.values[0]).ravel()]] = True
            for row, values in enumerate(part.values):
                if part.needed_at_once:
                    at_once[row] += np.bincount(place, np.nan_to_num(values).ravel(), minlength=len(known))
                else:
                    np.fmax.at(beside[row], place, values.ravel())
    total = np.where(known, at_once + np.nan_to_num(beside), np.nan)
    return Lateness(*total.reshape(4, world, BLOCKS))


@dataclass(frozen=True, slots=True)
class _Time:
    step_s: float | None
    newest_s: float


@dataclass(frozen=True, slots=True)
class _Shape:
    """How the operations of a communicator are laid out in steps."""

    length: int
    """Of its table."""
    per_step: int
    """Of those that are in the table."""
    keep: int
    """One in so many is in the table."""
    steps: int
    """That are judged, the newest: a multiple of the blocks."""
    blocks: int
    needed_at_once: bool


@dataclass(frozen=True, slots=True)
class _Part:
    """Communicators of one shape."""

    ranks: Ints
    """(c, g)"""
    values: Floats
    """(4, c, g, blocks): the columns of `Lateness`."""
    needed_at_once: bool


def _parts(stack: Stack, judged: Bools, time: _Time) -> list[_Part]:
    at_once = np.isin(stack.names.astype(str), list(NEEDED_AT_ONCE))
    at_once |= stack.operation not in MATCHED_OPERATIONS
    paces = [_operations_per_s(table) for table in stack.tables]
    alike: dict[_Shape, list[int]] = {}
    for row in np.flatnonzero(judged).tolist():
        shape = _shape(stack.tables[row], paces[row], time, at_once=bool(at_once[row]))
        if shape is not None:
            alike.setdefault(shape, []).append(row)
    return [
        _part(stack, np.array(rows), shape, np.array([paces[row] for row in rows]), time.step_s)
        for shape, rows in alike.items()
    ]


def _part(stack: Stack, rows: Ints, shape: _Shape, paces: Floats, step_s: float | None) -> _Part:
    taken = slice(shape.length - shape.steps * shape.per_step, shape.length)
    grid = (len(rows), shape.steps, shape.per_step)
    last = stack.parts.last_arriver[rows, taken]
    wait = np.where((last >= 0)[..., None], stack.parts.wait_s[rows, taken], 0.0)
    ranks = wait.shape[-1]
    of_others = _of_next(wait).reshape(grid)
    seen = (last >= 0).reshape(grid).any(axis=2)
    last, wait = np.maximum(last, 0).reshape(grid), wait.reshape(*grid, ranks)
    per_operation = (paces / shape.per_step)[:, None, None]
    total = _summed(last, of_others, ranks) * per_operation
    if shape.needed_at_once:
        least, waits = total, wait.sum(axis=2) * per_operation
    else:
        # What happens less often than once a step is not lost in every step.
        steps_per_s = np.minimum(1 / step_s, paces[:, None, None]) if step_s else per_operation / shape.keep
        least, waits = _longest(last, of_others, ranks) * steps_per_s, wait.max(axis=2) * steps_per_s
    # Where all are late in turn, nobody is.
    least = least - (least.sum(axis=2, keepdims=True) - least) / max(1, ranks - 1)
    among = np.broadcast_to(total.sum(axis=2, keepdims=True), total.shape)
    by_step = np.stack([least, total, among, waits])
    by_step[:, ~seen] = np.nan
    return _Part(stack.ranks[rows], _in_blocks(by_step, shape.blocks), shape.needed_at_once)


def _of_next(wait: Floats) -> Floats:
    """What is lost by the last rank of each operation: what the next one before it waits.

    Had the last one not been late, the others would still have waited for that one. In a large group it is the
    one after a tenth, so that several slow ranks do not excuse each other.
    """
    place = max(1, round(_EXCUSED * (wait.shape[-1] - 1)))
    if place > 1:
        return np.partition(wait, place, axis=-1)[..., place]
    # Column by column, as in `perfd.analysis.waiting`.
    least, following = wait[..., 0], np.full(wait.shape[:-1], np.inf)
    for column in range(1, wait.shape[-1]):
        own = wait[..., column]
        following = np.minimum(following, np.maximum(least, own))
        least = np.minimum(least, own)
    return np.where(np.isfinite(following), following, 0.0)


def _summed(last: Ints, of_others: Floats, ranks: int) -> Floats:
    """(c, steps, g): what the others waited while each rank was the last, summed over a step."""
    groups, steps, _ = last.shape
    place = np.arange(groups * steps).reshape(groups, steps, 1) * ranks + last
    summed = np.bincount(place.ravel(), of_others.ravel(), minlength=groups * steps * ranks)
    return summed.reshape(groups, steps, ranks).astype(np.float64)


def _longest(last: Ints, of_others: Floats, ranks: int) -> Floats:
    """The same, the longest of a step."""
    groups, steps, operations = last.shape
    longest = np.zeros((groups, steps, ranks))
    group, step = np.ogrid[:groups, :steps]
    for operation in range(operations):
        place = (group, step, last[:, :, operation])
        longest[place] = np.maximum(longest[place], of_others[:, :, operation])
    return longest


def _in_blocks(by_step: Floats, blocks: int) -> Floats:
    """(4, c, steps, g) to (4, c, g, BLOCKS): means over the steps of each block, NaN where there is none."""
    columns, groups, steps, ranks = by_step.shape
    means = mean(by_step.reshape(columns, groups, blocks, steps // blocks, ranks), axis=3)
    result = np.full((columns, groups, ranks, BLOCKS), np.nan)
    result[..., BLOCKS - blocks :] = np.moveaxis(means, 2, 3)
    return result


def _shape(table: CollectiveTable, pace: float, time: _Time, *, at_once: bool) -> _Shape | None:
    """None when too few steps are known to tell lateness from chance, or nobody knows what a step is."""
    length = len(table.sequence)
    if not (length and pace > 0):
        return None
    keep = max(1, int(np.median(np.diff(table.sequence)))) if length > 1 else 1
    kept_per_s = pace / keep
    fewest = fewest_blocks(len(table.ranks))
    if at_once:
        # Every wait is lost, so it does not matter where a step begins; but a block should hold a whole one.
        block_s = max(time.newest_s / fewest, time.step_s or 0.0)
        per_step: int | None = max(1, min(length // fewest, math.ceil(kept_per_s * block_s)))
    else:
        per_step = _operations_per_step(table.size_bytes, kept_per_s, time.step_s)
    if per_step is None:
        return None
    wanted = max(fewest, math.ceil(time.newest_s * kept_per_s / per_step))
    in_step = kept_per_s * time.step_s if time.step_s else per_step
    settled = int(np.count_nonzero(table.sequence >= _START_UP_STEPS * in_step * keep))
    steps = min(settled // per_step, wanted)
    if steps < min(2 * fewest, wanted):
        return None
    return _Shape(length, per_step, keep, steps - steps % fewest, fewest, at_once)


def _operations_per_step(sizes: Floats, per_s: float, step_s: float | None) -> int | None:
    """How many to take for those of one step: rather more than fewer, so that each holds a whole step."""
    period = _period(sizes)
    if step_s is None:
        return period
    expected = per_s * step_s
    if period is not None and period > 1 and abs(period / expected - 1) <= _NEAR:
        return period
    return 1 if expected < 1 + _NEAR else _rounded((1 + _NEAR) * expected)


def fewest_blocks(ranks: int) -> int:
    """How many blocks must point at one of so many ranks before that is hardly chance."""
    return min(BLOCKS, max(_FEWEST_STEPS, 1 + math.ceil(math.log(1 / _CHANCE) / math.log(max(2, ranks)))))


def _operations_per_s(table: CollectiveTable) -> float:
    if table.operations_per_s is not None:
        return table.operations_per_s
    usual_s = float(mean(table.durations_s.ravel()))
    return float(np.mean(table.kernel_ratio)) / usual_s if usual_s > 0 else 0.0


def _rounded(number: float) -> int:
    """To about 5 %, so that communicators that do alike are worked on together."""
    return max(1, round(number if number < 10 else math.exp(round(10 * math.log(number)) / 10)))


def _period(sizes: Floats) -> int | None:
    """After how many operations the sizes repeat: those of a step, if no log tells what a step is."""
    newest = sizes[-_LONGEST_PERIOD * 3 :]
    if not np.isfinite(newest).all():
        return None
    for period in range(1, len(newest) // 3 + 1):
        if (newest[period:] == newest[:-period]).mean() >= _ALIKE:
            return period
    return None
