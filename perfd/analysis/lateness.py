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
from perfd.analysis.step_shapes import Shape, shapes_of
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

    def error(self, caused: Floats) -> Floats:
        """The standard error of that median, `caused`."""
        blocks = np.maximum(np.isfinite(self.at_least).sum(axis=1), 1)
        spread = median(np.abs(self.at_least - caused[:, None]), axis=1)
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
    each: int | None = None,
    told: int | None = None,
) -> Lateness:
    """Of the newest operations of all communicators that are `judged`, a flag each.

    These are groups of peers, and pairs that send and receive, whose waiting counts but is nobody's fault.
    Over several communicators of a rank, what is needed at once adds up; of the rest the one that shows most
    counts, because the same lag is seen in all of them. With `each` every one of so many steps is a block;
    with `told` only the newest so many blocks are told of.
    """
    parts = [
        part
        for stack, flags in zip(stacks, judged, strict=True)
        for part in _parts(stack, flags, step_s=step_s, newest_s=newest_s, each=each, told=told)
    ]
    # Of pairs more blocks may be known, in which nobody can be late.
    blocks = max((part.values.shape[1] for part in parts if not part.of_pairs), default=0)
    at_once = np.zeros((4, blocks, world))
    beside = np.full((4, blocks, world), np.nan)
    known: Bools = np.zeros((blocks, world), dtype=np.bool_)
    for part in parts:
        if part.of_pairs:
            shown = min(blocks, part.values.shape[1])
            _add_by_rank(at_once[3:, blocks - shown :], part)
            continue
        newest = slice(blocks - part.values.shape[1], None)
        known[newest] |= _any_by_rank(part.ranks, np.isfinite(part.values[0]), world)
        if part.needed_at_once:
            _add_by_rank(at_once[:, newest], part)
        else:
            _raise_by_rank(beside[:, newest], part)
    total = np.add(at_once, beside, out=at_once, where=~np.isnan(beside))
    if not known.all():
        total[:, ~known] = np.nan
    return Lateness(*total.transpose(0, 2, 1))


@dataclass(frozen=True, slots=True)
class _Part:
    """Communicators of one shape."""

    ranks: Ints
    """(c, g)"""
    values: Floats
    """(4, blocks, c, g): the columns of `Lateness`; of pairs the last one only."""
    needed_at_once: bool

    @property
    def of_pairs(self) -> bool:
        """Whether their waiting is nobody's fault."""
        return len(self.values) == 1


def _add_by_rank(total: Floats, part: _Part) -> None:
    """Add to (columns, blocks, world) what all communicators of a rank show in the newest blocks."""
    ranks, newest = part.ranks.ravel(), part.values[:, part.values.shape[1] - total.shape[1] :]
    whole = bool(np.isfinite(newest).all())
    place = _place_of_each(ranks, total.shape[-1])
    # One row after the other fits into the processor's cache.
    for row in np.ndindex(newest.shape[:2]):
        values = (newest[row] if whole else np.nan_to_num(newest[row])).ravel()
        if place is None:
            total[row] += np.bincount(ranks, values, len(total[row]))
        else:
            total[row] += values.take(place, mode="clip")


def _place_of_each(ranks: Ints, world: int) -> Ints | None:
    """Where each rank is, if all are there once, as in the groups of one dimension; else None."""
    place = np.full(world, -1)
    if len(ranks) != world:
        return None
    place[ranks] = np.arange(world)
    return None if place.min() < 0 else place


def _any_by_rank(ranks: Ints, seen: Bools, world: int) -> Bools:
    found: Bools = np.zeros((len(seen), world), dtype=np.bool_)
    block, group, member = np.nonzero(seen) if not seen.all() else (slice(None), slice(None), slice(None))
    found[block, ranks[group, member]] = True
    return found


def _raise_by_rank(highest: Floats, part: _Part) -> None:
    """Raise (columns, blocks, world) to the largest that any communicator of a rank shows."""
    ranks = part.ranks.ravel()
    place = _place_of_each(ranks, highest.shape[-1])
    for row in np.ndindex(part.values.shape[:2]):
        values = part.values[row].ravel()
        if place is None:
            np.fmax.at(highest[row], ranks, values)
        else:
            np.fmax(highest[row], values.take(place, mode="clip"), out=highest[row])


def _parts(
    stack: Stack,
    judged: Bools,
    *,
    step_s: float | None,
    newest_s: float,
    each: int | None,
    told: int | None,
) -> list[_Part]:
    at_once: Bools = np.ones(len(judged), dtype=np.bool_)
    if stack.operation in MATCHED_OPERATIONS:
        at_once = np.array([name in NEEDED_AT_ONCE for name in stack.names.tolist()])
    shapes = shapes_of(stack, judged, at_once, step_s=step_s, newest_s=newest_s, each=each)
    return [_part(stack, shape if told is None else shape.newest(told), step_s) for shape in shapes]


def _part(stack: Stack, shape: Shape, step_s: float | None) -> _Part:
    taken = slice(shape.length - shape.steps * shape.per_step, shape.length)
    # Where waits add up, a block is as good as a step.
    steps = shape.blocks if shape.needed_at_once else shape.steps
    per_step = shape.steps * shape.per_step // steps
    grid = (len(shape.rows), steps, per_step)
    # All of them are a view, which costs nothing.
    rows = slice(None) if len(shape.rows) == len(stack.ranks) else shape.rows
    last, wait = stack.parts.last_arriver[rows, taken], stack.parts.wait_s[rows, taken]
    matched = last >= 0
    whole = bool(matched.all())
    if not whole:
        wait, last = np.where(matched[..., None], wait, 0.0), np.maximum(last, 0)
    if stack.operation in MATCHED_OPERATIONS:
        by_step = _by_step(last.reshape(grid), wait, shape, step_s)
    else:
        by_step = _waits(wait.reshape(*grid, -1), shape, step_s)[None]
    if not whole:
        by_step[:, ~matched.reshape(grid).any(axis=2)] = np.nan
    return _Part(stack.ranks[shape.rows], _in_blocks(by_step, shape.blocks), shape.needed_at_once)


def _by_step(last: Ints, wait: Floats, shape: Shape, step_s: float | None) -> Floats:
    """(4, c, steps, g): the columns of `Lateness`; `last` is (c, steps, operations)."""
    ranks = wait.shape[-1]
    of_others = _of_next(wait).reshape(last.shape)
    total = _summed(last, of_others, ranks)
    total *= (shape.paces / last.shape[2])[:, None, None]
    least = total
    if not shape.needed_at_once:
        least = _longest(last, of_others, ranks)
        least *= _steps_per_s(shape, last.shape[2], step_s)
    by_step = np.empty((4, *total.shape))
    # Where all are late in turn, nobody is.
    each = np.ones((ranks, 1))
    of_all = least @ each
    np.subtract(of_all, least, out=by_step[0])
    by_step[0] /= max(1, ranks - 1)
    np.subtract(least, by_step[0], out=by_step[0])
    by_step[1] = total
    by_step[2] = total @ each
    by_step[3] = _waits(wait.reshape(*last.shape, ranks), shape, step_s)
    return by_step


def _waits(wait: Floats, shape: Shape, step_s: float | None) -> Floats:
    """(c, steps, g): what each rank itself loses; `wait` is (c, steps, operations, g)."""
    operations = wait.shape[2]
    # Operation by operation, since numpy's own loop over a short axis costs more than the sums.
    result = wait[:, :, 0].copy()
    for operation in range(1, operations):
        if shape.needed_at_once:
            result += wait[:, :, operation]
        else:
            np.maximum(result, wait[:, :, operation], out=result)
    if shape.needed_at_once:
        return np.asarray(result * (shape.paces / operations)[:, None, None])
    return np.asarray(result * _steps_per_s(shape, operations, step_s))


def _steps_per_s(shape: Shape, operations: int, step_s: float | None) -> Floats:
    """(c, 1, 1): what happens less often than once a step is not lost in every step."""
    often = shape.paces[:, None, None]
    return np.asarray(np.minimum(1 / step_s, often) if step_s else often / operations / shape.keep)


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
    """(columns, c, steps, g) to (columns, blocks, c, g): means over each block's steps, NaN where none is."""
    columns, groups, steps, ranks = by_step.shape
    means = by_step
    if steps > blocks:
        grouped = by_step.reshape(columns, groups, blocks, steps // blocks, ranks)
        # Looking for what is absent costs more than the mean.
        means = mean(grouped, axis=3) if np.isnan(grouped[0]).any() else grouped.mean(axis=3)
    return means.transpose(0, 2, 1, 3)
