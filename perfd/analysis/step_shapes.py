"""How the operations of communicators are laid out in steps, as far as their pace and sizes tell."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from perfd.analysis.robust import mean
from perfd.analysis.stacks import Stack
from perfd.analysis.tables import Bools, CollectiveStack, Floats, Ints

MOST_BLOCKS = 10
_FEWEST_STEPS = 5
_CHANCE = 0.002
"""That one rank is the last in all blocks although each is as likely to be."""
_START_UP_STEPS = 3
_NEAR = 0.25
"""As exactly are operations a step known by the pace of operations and of steps."""
_FEW_OPERATIONS = 12
_LONGEST_PERIOD = 300
_ALIKE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
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

    def newest(self, blocks: int) -> Shape:
        """The same without the blocks before the newest so many."""
        kept = min(blocks, self.blocks)
        return replace(self, steps=self.steps // self.blocks * kept, blocks=kept)


def fewest_blocks(ranks: int) -> int:
    """How many blocks must point at one of so many ranks before that is hardly chance."""
    against_chance = 1 + math.ceil(-math.log(_CHANCE) / math.log(max(2, ranks)))
    return min(MOST_BLOCKS, max(_FEWEST_STEPS, against_chance))


def shapes_of(
    stack: Stack,
    judged: Bools,
    needed_at_once: Bools,
    *,
    step_s: float | None,
    newest_s: float,
    each: int | None = None,
) -> list[Shape]:
    """Those of a stack that are `judged`, by shape.

    Left out are those of which too few steps are known to tell lateness from chance, and those of which
    nobody knows what a step is. `newest_s` is how much time is judged. With `each` it is so many steps at
    most, and each is a block.
    """
    fewest = fewest_blocks(stack.ranks.shape[1])
    lengths, sequence = stack.collectives.lengths, stack.collectives.sequence
    if lengths.max() < fewest:
        return []
    paces = _paces(stack.collectives)
    chosen = np.flatnonzero(judged & (lengths >= fewest) & (paces > 0))
    if not len(chosen):
        return []
    lengths, paces, at_once = lengths[chosen], paces[chosen], needed_at_once[chosen]
    first, last = sequence[chosen, 0], sequence[chosen, lengths - 1]
    keep = np.maximum(1, np.rint((last - first) / np.maximum(lengths - 1, 1))).astype(np.int64)
    kept_per_s = paces / keep
    # Where every wait is lost, it does not matter where a step begins; but a block should hold a whole one.
    block_s = max(newest_s / fewest if each is None else 0.0, step_s or 0.0)
    per_step = np.clip(_rounded(kept_per_s * block_s), 1, lengths // fewest)
    beside = np.flatnonzero(~at_once)
    per_step[beside] = _of_steps(stack, chosen[beside], kept_per_s[beside], step_s, spare=each is None)
    in_step = np.maximum(1.0, kept_per_s * step_s) if step_s else per_step
    wanted = np.maximum(fewest, np.ceil(newest_s * kept_per_s / per_step)).astype(np.int64)
    if each is not None:
        wanted = np.full(len(chosen), each)
    steps = np.minimum(_settled(lengths, first / keep, in_step) // per_step, wanted)
    enough = steps >= np.where(at_once, fewest, np.minimum(2 * fewest, wanted))
    if each is None:
        steps -= steps % fewest
    columns = np.stack([lengths, per_step, keep, steps, at_once.astype(np.int64)])
    return [
        _shape(columns[:, rows[0]], rows=chosen[rows], paces=paces[rows], blocks=None if each else fewest)
        for rows in _alike(columns, np.flatnonzero(enough))
    ]


def _settled(lengths: Ints, before: Floats, in_step: Floats | Ints) -> Ints:
    """How many of the operations are not of a job's first steps; `before` are those that are not held."""
    starting = np.ceil(_START_UP_STEPS * in_step - before)
    return lengths - np.clip(starting, 0, lengths).astype(np.int64)


def _of_steps(stack: Stack, rows: Ints, per_s: Floats, step_s: float | None, *, spare: bool) -> Ints:
    """Operations of a step of each row; more than there are where that is unknown."""
    lengths = stack.collectives.lengths[rows]
    found = [
        _operations_per_step(stack.size_bytes[row, :length], pace, step_s, spare=spare)
        for row, length, pace in zip(rows.tolist(), lengths.tolist(), per_s.tolist(), strict=True)
    ]
    per_step = np.array(found, dtype=np.int64)
    return np.where(per_step > 0, per_step, int(stack.collectives.lengths.max()) + 1)


def _shape(column: Ints, *, rows: Ints, paces: Floats, blocks: int | None) -> Shape:
    """Of communicators that have this column in common; each step is a block if nothing else is said."""
    length, per_step, keep, steps, at_once = column.tolist()
    return Shape(
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
    own = columns[:, chosen]
    if (own == own[:, :1]).all():
        return [chosen]
    _, group = np.unique(own, axis=1, return_inverse=True)
    return [chosen[group.ravel() == number] for number in range(int(group.max()) + 1)]


def _paces(collectives: CollectiveStack) -> Floats:
    paces = collectives.operations_per_s.copy()
    for row in np.flatnonzero(np.isnan(paces)).tolist():
        paces[row] = _pace(collectives, row)
    return paces


def _pace(collectives: CollectiveStack, row: int) -> float:
    """By the time in kernels, when nobody counted."""
    usual_s = float(mean(collectives.durations_s[row, : collectives.lengths[row]].ravel()))
    return float(np.mean(collectives.kernel_ratio[row])) / usual_s if usual_s > 0 else 0.0


def _operations_per_step(sizes: Floats, per_s: float, step_s: float | None, *, spare: bool) -> int:
    """How many to take for those of one step, rather too many than too few; 0 if that is unknown.

    Without `spare` few are not made more: then some may miss the one that is waited for.
    """
    period = _period(sizes)
    if step_s is None:
        return period
    expected = per_s * step_s
    if period > 1 and abs(period / expected - 1) <= _NEAR:
        return period
    if not spare and expected < _FEW_OPERATIONS:
        return max(1, math.ceil(expected - _NEAR))
    return 1 if expected < 1 + _NEAR else int(_rounded(np.array((1 + _NEAR) * expected)))


def _rounded(numbers: Floats) -> Ints:
    """Up, to about 5 %, so that communicators that do alike are worked on together."""
    exact = np.maximum(np.asarray(numbers), 1e-9)
    coarse = np.exp(np.ceil(10 * np.log(exact) - 1e-6) / 10)
    return np.ceil(np.where(exact < 10, exact - 1e-6, coarse)).astype(np.int64)


def _period(sizes: Floats) -> int:
    """After how many operations the sizes repeat, 0 if they do not: those of a step have different ones."""
    newest = sizes[-3 * _LONGEST_PERIOD :]
    if not np.isfinite(newest).all():
        return 0
    for period in range(1, len(newest) // 3 + 1):
        if (newest[period:] == newest[:-period]).mean() >= _ALIKE:
            return period
    return 0
