"""What is lost in each step of communicators that do alike: by whom, and by each rank itself.

(c, steps, operations) are the operations of c communicators in steps, and g their ranks. Results have the
steps first, so that one step of all ranks is side by side.
"""

from __future__ import annotations

import numpy as np

from perfd.analysis.collectives.step_losses import StepShape
from perfd.analysis.data.job_data import Floats, Ints

_EXCUSED = 0.1
"""So many members of a group may be slow together without excusing each other."""


def losses_by_step(
    last: Ints, wait_s: Floats, shape: StepShape, step_s: float | None, *, columns: int
) -> Floats:
    """(columns, steps, c, g): the first `columns` columns of `late_rank_cost.Lateness`.

    `last` is the last rank of each operation, and `wait_s` (..., g) what each waited for it; zeros where
    it is unknown.
    """
    groups, steps, operations, ranks = wait_s.shape
    of_others = _of_next(wait_s)
    total = _summed(last, of_others, ranks)
    total *= (shape.paces / operations)[:, None]
    least = total
    if not shape.needed_at_once:
        least = _longest(last, of_others, ranks)
        least *= steps_per_s(shape, operations, step_s)[:, None]
    by_step = np.empty((columns, steps, groups, ranks))
    # Where all are late in turn, none is to blame.
    np.subtract(_of_all(least), least, out=by_step[0])
    by_step[0] /= max(1, ranks - 1)
    np.subtract(least, by_step[0], out=by_step[0])
    if columns > 1:
        by_step[1], by_step[2], by_step[3] = total, _of_all(total), waits_by_step(wait_s, shape, step_s)
    return by_step


def waits_by_step(wait_s: Floats, shape: StepShape, step_s: float | None) -> Floats:
    """(steps, c, g): what others cost each rank."""
    # Operation by operation, since numpy's own loop over a short axis costs more than the sums.
    lost, *later = wait_s.transpose(2, 1, 0, 3)
    combined = np.add if shape.needed_at_once else np.maximum
    for own in later:
        lost = combined(lost, own)
    often = (
        shape.paces / wait_s.shape[2] if shape.needed_at_once else steps_per_s(shape, wait_s.shape[2], step_s)
    )
    return np.asarray(lost * often[:, None])


def _of_all(by_rank: Floats) -> Floats:
    """(steps, c, 1): the sum over ranks; one product, since over a short axis numpy's own sum is slow."""
    ranks = by_rank.shape[-1]
    summed = by_rank.reshape(-1, ranks) @ np.ones((ranks, 1))
    return np.asarray(summed.reshape(*by_rank.shape[:-1], 1))


def steps_per_s(shape: StepShape, operations: int, step_s: float | None) -> Floats:
    """(c,): what happens less often than once a step is not lost in every step."""
    often = shape.paces
    return np.asarray(np.minimum(1 / step_s, often) if step_s else often / operations / shape.keep)


def _of_next(wait_s: Floats) -> Floats:
    """What is lost by the last rank of each operation: what the next one before it waits.

    Had the last one not been late, the others would still have waited for that one. In a large group it is
    the one after a tenth, so that several slow ranks do not excuse each other.
    """
    place = max(1, round(_EXCUSED * (wait_s.shape[-1] - 1)))
    if place > 1:
        return np.partition(wait_s, place, axis=-1)[..., place]
    # Column by column, as in `perfd.analysis.operations.transfer_wait`.
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
