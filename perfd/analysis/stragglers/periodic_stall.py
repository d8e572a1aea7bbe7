"""Steps that are longer at regular intervals: garbage collection, logging, an emptied cache, cron jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Bools, CollectiveStack, Floats, Ints, StepTable
from perfd.analysis.data.robust_stats import median_of, sigma_of
from perfd.analysis.operations.communicator_waits import stacked
from perfd.model import ParallelLayout
from perfd.thresholds import THRESHOLDS

_NEWEST = (200, 50, 25)
"""Lines that are looked at: first all, then fewer, since steps were longer for other reasons further back."""
_SHORTEST_STEPS = 3
"""With a shorter period, as of micro-batches or layouts that alternate, the longer steps are not stalls."""
_SIGMAS = 4.0
"""Of the spread of steps. Chosen: one in 31,600 values of a normal distribution is above."""
_REGULAR_RATIO = 0.8
"""Of the intervals, how many must be the period, or a multiple where a stall was hidden."""
_OVER_PERIODS = 2.0
"""Without a stall for longer, it is over."""
_SAME_TIME_RATIO = 0.1
"""By how much intervals in seconds may differ from their median."""
_AS_COSTLY = 0.25
"""Of a stall, what another one costs at least that may be of the same cause. Chosen."""
_LARGE = 0.5
"""Of a stall: operations in which others wait for so long show who stalls."""
_SURE = 0.8
"""Of those operations, in how many the same rank must be the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicStall:
    """Steps that take longer again and again."""

    period_steps: int | None
    """None where it is regular in time, and not in steps."""
    period_s: float
    usual_s: float
    """A step without it, the median."""
    stall_s: float
    """How much longer such a step takes, the median."""
    stalls: int
    cost_ratio: float
    """Of the time of all steps."""
    rank: int | None = None
    """The one that the others wait for meanwhile; None where nothing shows one."""


def periodic_stall(
    steps: StepTable,
    rows: Ints,
    collectives: Sequence[CollectiveStack],
    parallel: ParallelLayout,
) -> PeriodicStall | None:
    """Stalls of one period among the newest of these rows; None without, or where they cost little.

    At least four stalls, the start and three periods, are needed. Lines may cover several steps, all as many:
    then the period is known to so many.
    """
    found = (
        _regular(steps, rows[-newest:], collectives, parallel, exact=newest < max(_NEWEST), costly=costly)
        for costly in (False, True)
        for newest in _NEWEST
        if newest == max(_NEWEST) or newest < len(rows)
    )
    return next((one for one in found if one is not None), None)


def _regular(
    steps: StepTable,
    rows: Ints,
    collectives: Sequence[CollectiveStack],
    parallel: ParallelLayout,
    *,
    exact: bool,
    costly: bool,
) -> PeriodicStall | None:
    """Of all these rows; with `exact`, as so few are alike by chance sooner, every interval is the period.

    With `costly` only of those stalls that cost most.
    """
    times, numbers, covered = steps.step_time_s[rows], steps.step[rows], steps.steps_covered[rows]
    if not len(rows) or (covered != covered[-1]).any():
        return None
    stalled = _stalled(times)
    if costly:
        stalled &= _costly(times, stalled)
    if stalled.sum() < THRESHOLDS.periodic_stall_count:
        return None
    usual_s = float(np.median(times[~stalled]))
    cost = float((times[stalled] - usual_s).sum() / times.sum())
    apart, ends = np.diff(numbers[stalled]), steps.time_unix_s[rows][stalled]
    period = int(np.median(apart))
    if cost < THRESHOLDS.periodic_stall_ratio or period < _SHORTEST_STEPS * covered[-1]:
        return None
    same = apart == period if exact else apart % period == 0
    by_steps = float(same.mean()) >= (1.0 if exact else _REGULAR_RATIO)
    if not np.isfinite(ends).all() or not (by_steps or (not exact and _regular_in_time(np.diff(ends)))):
        return None
    period_s = float(np.median(np.diff(ends)))
    # The newest one may be an evaluation, long after the stalls ended.
    if max(steps.time_unix_s[rows][-1] - ends[-1], ends[-1] - ends[-2]) > _OVER_PERIODS * period_s:
        return None
    stall_s = float(covered[-1] * (np.median(times[stalled]) - usual_s))
    return PeriodicStall(
        period_steps=period if by_steps else None,
        period_s=period_s,
        usual_s=usual_s,
        stall_s=stall_s,
        stalls=int(stalled.sum()),
        cost_ratio=cost,
        rank=_waited_for(collectives, parallel, stall_s, since_s=int(stalled.sum()) * period_s),
    )


def _stalled(times: Floats) -> Bools:
    """Steps that stand out of most; none where more than a third does: that is another pace."""
    usual_s, sigma_s = median_of(times), sigma_of(times)
    if usual_s is None or sigma_s is None:
        return np.zeros(len(times), dtype=np.bool_)
    least_s = max(THRESHOLDS.step_regression_ratio * usual_s, _SIGMAS * sigma_s)
    found = times > usual_s + least_s
    return found if 3 * found.sum() <= len(times) else np.zeros(len(times), dtype=np.bool_)


def _costly(times: Floats, stalled: Bools) -> Bools:
    """Steps not far shorter than the stalls that make up half of what all of them cost.

    A step that stands out by little is none of the stalls that cost ten times as much.
    """
    if not stalled.any():
        return stalled
    excess_s = times - np.median(times[~stalled])
    longest_first = np.sort(excess_s[stalled])[::-1]
    of_half = longest_first[np.searchsorted(longest_first.cumsum(), longest_first.sum() / 2)]
    return np.asarray(excess_s >= _AS_COSTLY * of_half)


def _regular_in_time(apart_s: Floats) -> bool:
    """Whether intervals are alike, though not in steps."""
    middle_s = float(np.median(apart_s))
    near = np.abs(apart_s - middle_s) <= _SAME_TIME_RATIO * middle_s
    return float(near.mean()) >= _REGULAR_RATIO


def _waited_for(
    collectives: Sequence[CollectiveStack],
    parallel: ParallelLayout,
    stall_s: float,
    *,
    since_s: float,
) -> int | None:
    """The rank that is the last in nearly all operations in which others wait for most of a stall.

    Of operations of the last `since_s`: in earlier ones they may have waited for another reason.
    """
    last: list[Ints] = []
    for batch in stacked(collectives, parallel):
        if not batch.matched:
            continue
        longest = np.where(batch.parts.last_arriver >= 0, batch.parts.wait_s.max(axis=-1, initial=0.0), 0.0)
        lengths, per_s = batch.collectives.lengths, batch.collectives.operations_per_s
        recent = lengths - np.nan_to_num(np.ceil(per_s * since_s), nan=np.inf)
        of_stalls = np.arange(longest.shape[1]) >= recent[:, None]
        row, operation = np.nonzero((longest >= _LARGE * stall_s) & of_stalls)
        last.append(batch.ranks[row, batch.parts.last_arriver[row, operation]])
    ranks, counts = (
        np.unique(np.concatenate(last), return_counts=True) if last else (np.zeros(0), np.zeros(0))
    )
    if not len(ranks) or counts.max() < max(2, _SURE * counts.sum()):
        return None
    return int(ranks[counts.argmax()])
