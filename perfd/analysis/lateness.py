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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfd.analysis.robust import MAD_TO_SIGMA, MEDIAN_ERROR, mean, median
from perfd.analysis.stacks import Stack
from perfd.analysis.step_shapes import MOST_BLOCKS, Shape, shapes_of
from perfd.analysis.tables import Bools, Floats, Ints
from perfd.analysis.waiting import MATCHED_OPERATIONS

RECENT_S, LONG_S = 5.0, 30.0
"""How much time is judged: a rank that has just become slow shows in the first, one that stalls now and then
in the second. At least as many steps are judged as it takes to exclude chance."""
_EXCUSED = 0.1
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
    at_once = np.zeros((4, world * MOST_BLOCKS))
    beside = np.full((4, world * MOST_BLOCKS), np.nan)
    known: Bools = np.zeros(world * MOST_BLOCKS, dtype=np.bool_)
    for stack, flags in zip(stacks, judged, strict=True):
        for part in _parts(stack, flags, step_s, newest_s):
            place = (part.ranks[:, :, None] * MOST_BLOCKS + np.arange(MOST_BLOCKS)).ravel()
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
    return Lateness(*total.reshape(4, world, MOST_BLOCKS))


@dataclass(frozen=True, slots=True)
class _Part:
    """Communicators of one shape."""

    ranks: Ints
    """(c, g)"""
    values: Floats
    """(4, c, g, blocks): the columns of `Lateness`."""
    needed_at_once: bool


def _parts(stack: Stack, judged: Bools, step_s: float | None, newest_s: float) -> list[_Part]:
    at_once = np.full(len(judged), stack.operation not in MATCHED_OPERATIONS)
    for name in NEEDED_AT_ONCE:
        at_once |= np.equal(stack.names, name).astype(np.bool_)
    shapes = shapes_of(stack, judged, at_once, step_s=step_s, newest_s=newest_s)
    return [_part(stack, shape, step_s) for shape in shapes]


def _part(stack: Stack, shape: Shape, step_s: float | None) -> _Part:
    taken = slice(shape.length - shape.steps * shape.per_step, shape.length)
    # Where waits add up, a block is as good as a step.
    steps = shape.blocks if shape.needed_at_once else shape.steps
    per_step = shape.steps * shape.per_step // steps
    grid = (len(shape.rows), steps, per_step)
    # All of them are a view, which costs nothing.
    rows = slice(None) if len(shape.rows) == len(stack.tables) else shape.rows
    last, wait = stack.parts.last_arriver[rows, taken], stack.parts.wait_s[rows, taken]
    matched = last >= 0
    if not matched.all():
        wait, last = np.where(matched[..., None], wait, 0.0), np.maximum(last, 0)
    ranks = wait.shape[-1]
    of_others = _of_next(wait).reshape(grid)
    last, wait = last.reshape(grid), wait.reshape(*grid, ranks)
    per_operation = (shape.paces / per_step)[:, None, None]
    total = _summed(last, of_others, ranks) * per_operation
    if shape.needed_at_once:
        least, waits = total, wait.sum(axis=2) * per_operation
    else:
        # What happens less often than once a step is not lost in every step.
        often = shape.paces[:, None, None]
        steps_per_s = np.minimum(1 / step_s, often) if step_s else per_operation / shape.keep
        least, waits = _longest(last, of_others, ranks) * steps_per_s, wait.max(axis=2) * steps_per_s
    # Where all are late in turn, nobody is.
    least = least - (least.sum(axis=2, keepdims=True) - least) / max(1, ranks - 1)
    among = np.broadcast_to(total.sum(axis=2, keepdims=True), total.shape)
    by_step = np.stack([least, total, among, waits])
    if not matched.all():
        by_step[:, ~matched.reshape(grid).any(axis=2)] = np.nan
    return _Part(stack.ranks[shape.rows], _in_blocks(by_step, shape.blocks), shape.needed_at_once)


def _of_next(wait: Floats) -> Floats:
    """What is lost by the last rank of each operation: what the next one before it waits.

    Had the last one not been late, the others would still have waited for that one. In a large group it is
    the one after a tenth, so that several slow ranks do not excuse each other.
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
    """(4, c, steps, g) to (4, c, g, MOST_BLOCKS): means over each block's steps, NaN where there is none."""
    columns, groups, steps, ranks = by_step.shape
    means = by_step
    if steps > blocks:
        grouped = by_step.reshape(columns, groups, blocks, steps // blocks, ranks)
        # Looking for what is absent costs more than the mean.
        means = mean(grouped, axis=3) if np.isnan(grouped[0]).any() else grouped.mean(axis=3)
    result = np.full((columns, groups, ranks, MOST_BLOCKS), np.nan)
    result[..., MOST_BLOCKS - blocks :] = np.moveaxis(means, 2, 3)
    return result
