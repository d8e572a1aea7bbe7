"""Which progress lines show the job at its normal pace, and why each other one does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from perfd.analysis.data.job_data import Bools, Floats, Ints, StepTable
from perfd.analysis.data.robust_stats import MAD_TO_SIGMA, median
from perfd.model import Event, EventKind

_NEIGHBOURS = 10
"""On each side: what is slow for longer than this is the job's new pace, not an outlier."""
_NEIGHBOURS_OF_MEANS = 3
"""The same for lines that are means of several steps."""
_STEPS_OF_MEANS = 4
"""Lines that cover so many steps each are means, of which fewer say as much as lines of single steps."""
_FEWEST = 5
"""With fewer lines than this there is no pace that an outlier could differ from."""
_SETTLING_LINES = 10
"""After the first one, lines of a job that may still compile, allocate and connect, as many as it took at its
first start after a restart. Chosen."""
_SETTLING_RATIO = 1.5
"""Times the pace that a job has reached, which one of those takes at least that does. Chosen."""
_SETTLED_LINES = 3
"""In a row, whose median is a pace. The shortest one of a start counts, which no later fault changes."""
_OUTLIER_RATIO = 0.10
"""A step so near the usual time is not an outlier, however regular the others are. Chosen."""
_OUTLIER_SIGMAS = 4.0
"""Of the spread of steps. Chosen: one in 15,800 values of a normal distribution is farther off."""


class ExclusionReason(StrEnum):
    """Why a line does not enter steady statistics."""

    NO_TIME = "no_time"
    """It says no step time."""
    FIRST = "first"
    """It is the first line, or the first after a start or resume."""
    WARM_UP = "warm_up"
    """The framework's average still holds a first iteration, or later lines are far shorter."""
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    PROFILE = "profile"
    """A profiler ran, or wrote its trace."""
    BATCH_SIZE = "batch_size"
    """The global batch was another one than now."""
    OUTLIER = "outlier"
    """Far from the lines around it, with no mark that says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadySteps:
    """The rows of a `StepTable` that count, and the reason of each that does not."""

    rows: Ints
    unmarked: Ints
    """`rows` and the outliers: what jitter is measured on, since outliers are what it is about."""
    every_unmarked: Ints
    """The same without a window: of all lines that are known."""
    dropped: Mapping[ExclusionReason, Sequence[int]]
    """Step numbers by reason; a step that has several is under the first of the enumeration."""


def steady_rows(steps: StepTable, events: Sequence[Event], window: int | None = None) -> SteadySteps:
    """Choose the steady lines of a job; with `window`, this many of the newest."""
    reasons: dict[ExclusionReason, Bools] = {
        ExclusionReason.NO_TIME: ~(steps.step_time_s > 0),
        ExclusionReason.FIRST: _first_lines(steps, events),
        ExclusionReason.WARM_UP: np.asarray(steps.warmup, dtype=bool),
        ExclusionReason.CHECKPOINT: _at_and_after(steps, events, EventKind.CHECKPOINT),
        ExclusionReason.EVALUATION: _at_and_after(steps, events, EventKind.EVALUATION),
        ExclusionReason.PROFILE: _at_and_after(steps, events, EventKind.PROFILE),
    }
    kept = ~np.logical_or.reduce(list(reasons.values()))
    reasons[ExclusionReason.BATCH_SIZE] = kept & _other_batch_size(steps.global_batch_size, kept)
    kept &= ~reasons[ExclusionReason.BATCH_SIZE]
    start = np.cumsum(reasons[ExclusionReason.FIRST])[kept]
    starts = np.flatnonzero(np.diff(start)) + 1
    settling = np.flatnonzero(kept)[_settling(steps.step_time_s[kept], starts)]
    reasons[ExclusionReason.WARM_UP][settling] = True
    kept[settling] = False
    unmarked = np.flatnonzero(kept)
    times = steps.step_time_s[unmarked]
    if lines_are_means(steps, unmarked):
        far = _outliers(times, _NEIGHBOURS_OF_MEANS) & ~_newest_pace(times, _NEIGHBOURS_OF_MEANS)
    else:
        far = _outliers(times, _NEIGHBOURS)
    reasons[ExclusionReason.OUTLIER] = np.zeros(len(steps), dtype=bool)
    reasons[ExclusionReason.OUTLIER][unmarked[far]] = True
    kept &= ~reasons[ExclusionReason.OUTLIER]
    rows, newest = np.flatnonzero(kept), unmarked
    if window is not None and len(rows) > window:
        rows = rows[len(rows) - window :]
        newest = unmarked[unmarked >= rows[0]]
    return SteadySteps(
        rows=rows, unmarked=newest, every_unmarked=unmarked, dropped=_by_reason(steps, reasons)
    )


def lines_are_means(steps: StepTable, rows: Ints) -> bool:
    """Whether most of these lines cover several steps each."""
    return len(rows) > 0 and float(median(steps.steps_covered[rows])) >= _STEPS_OF_MEANS


def _first_lines(steps: StepTable, events: Iterable[Event]) -> Bools:
    first = np.zeros(len(steps), dtype=bool)
    first[:1] = True
    for event in events:
        if event.kind not in {EventKind.JOB_STARTED, EventKind.RESTARTED}:
            continue
        if event.step is not None:
            after = np.flatnonzero(steps.step > event.step)
        else:
            after = np.flatnonzero(steps.time_unix_s > event.time_unix_ns / 1e9)
        first[after[:1]] = True
    return first


def _at_and_after(steps: StepTable, events: Iterable[Event], kind: EventKind) -> Bools:
    """The line that holds each event, and the next: both pay for it, in one framework or another."""
    marked = np.zeros(len(steps) + 1, dtype=bool)
    for event in events:
        if event.kind is not kind:
            continue
        if event.step is not None:
            held = (steps.step - steps.steps_covered < event.step) & (event.step <= steps.step)
        else:
            at = event.time_unix_ns / 1e9
            started = steps.time_unix_s - steps.step_time_s * steps.steps_covered
            held = (started < at) & (at <= steps.time_unix_s)
        rows = np.flatnonzero(held)
        marked[rows] = True
        marked[rows + 1] = True
    return marked[:-1]


def _settling(times: Floats, starts: Ints) -> Bools:
    """Which lines are of a job that settles; `starts` are the places of the first ones after each restart."""
    settles = np.zeros(len(times), dtype=bool)
    # Nodes may report the first start late, too.
    of_first = _settling_count(times, np.inf, _SETTLING_LINES)
    settles[:of_first] = True
    for first, end in pairwise([*starts.tolist(), len(times)]):
        before = times[max(0, first - _NEIGHBOURS) : first]
        before_s = float(np.median(before)) if len(before) >= _SETTLED_LINES else np.inf
        # What takes longer than at the first start may be a fault that lasts.
        settles[first : first + _settling_count(times[first:end], before_s, of_first)] = True
    return settles


def _settling_count(times: Floats, before_s: float, most_lines: int) -> int:
    """How many lines, from the first on, are of a start that settles: most of them take far longer.

    `before_s` is the job's pace before that start; infinite if unknown.
    """
    settled_s, until = before_s, most_lines + 1
    if len(times) > _SETTLED_LINES:
        paces_s = median(sliding_window_view(times, _SETTLED_LINES))
        settled = int(np.argmin(paces_s))
        settled_s = min(before_s, float(paces_s[settled]))
        if paces_s[settled] <= _SETTLING_RATIO * settled_s:
            # What is slow after that is another pace.
            until = min(until, settled + _SETTLED_LINES)
    far = times[:until] > _SETTLING_RATIO * settled_s
    most = 2 * np.cumsum(far) > np.arange(len(far)) + 1
    count = int(np.flatnonzero(far & most).max(initial=-1)) + 1
    # What is slow for longer was the pace of the job then.
    return count if count <= most_lines else 0


def _other_batch_size(batch: Floats, kept: Bools) -> Bools:
    """Lines of a batch-size ramp before the newest size that has enough lines of its own."""
    sizes = batch[kept & np.isfinite(batch)]
    enough = [size for size in np.unique(sizes) if np.count_nonzero(sizes == size) >= _FEWEST]
    if not enough:
        return np.zeros(len(batch), dtype=bool)
    newest = max(enough, key=lambda size: int(np.flatnonzero(sizes == size)[-1]))
    return np.asarray(np.isfinite(batch) & (batch != newest))


def _outliers(times: Floats, neighbours: int) -> Bools:
    """Lines that are far from the median of the lines around them.

    Far means more than 10%, and more than four robust standard deviations of
    this job's own scatter; between two such lines, half of that. The median is
    local, so that a lasting change of pace stays in the statistics and a burst
    of slow steps does not.
    """
    far = np.zeros(len(times), dtype=bool)
    if len(times) < _FEWEST:
        return far
    # A second pass, so that the worst lines do not widen the scatter behind which others hide.
    for _ in range(2):
        deviation = np.log(times / _local_median(np.where(far, np.nan, times), neighbours))
        centred = np.where(far, np.nan, deviation)
        sigma = MAD_TO_SIGMA * float(median(np.abs(centred - median(centred))))
        limit = max(np.log1p(_OUTLIER_RATIO), _OUTLIER_SIGMAS * sigma)
        before, far = far, np.abs(deviation) > limit
        if (before == far).all():
            break
    between = np.convolve(far, [1, 0, 1], mode="same") == 2
    return np.asarray(far | (between & (np.abs(deviation) > limit / 2)))


def _newest_pace(times: Floats, fewest: int) -> Bools:
    """The newest lines that are all alike, if they are enough to show a pace."""
    alike = np.zeros(len(times), dtype=bool)
    if len(times) >= fewest:
        usual_s = float(np.median(times[-fewest:]))
        near = np.abs(np.log(times / usual_s)) <= np.log1p(_OUTLIER_RATIO)
        newest = len(times) - int(np.flatnonzero(~near)[-1] + 1 if not near.all() else 0)
        alike[len(times) - newest :] = newest >= fewest
    return alike


def _local_median(times: Floats, neighbours: int) -> Floats:
    padded = np.pad(times, neighbours, constant_values=np.nan)
    around = median(sliding_window_view(padded, 2 * neighbours + 1), axis=1)
    return np.where(np.isfinite(around), around, median(times))


def _by_reason(
    steps: StepTable, reasons: Mapping[ExclusionReason, Bools]
) -> dict[ExclusionReason, tuple[int, ...]]:
    taken = np.zeros(len(steps), dtype=bool)
    dropped: dict[ExclusionReason, tuple[int, ...]] = {}
    for reason, marked in reasons.items():
        rows = np.flatnonzero(marked & ~taken)
        taken |= marked
        if len(rows):
            dropped[reason] = tuple(steps.step[rows].tolist())
    return dropped
