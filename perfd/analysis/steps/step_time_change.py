"""A growth of step time: the newest steps by the job's earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from perfd.analysis.data.job_data import Bools, Floats, StepTable
from perfd.analysis.data.robust_stats import median_of, near_sigma_of
from perfd.analysis.steps.steady_steps import steady_rows
from perfd.model import Event
from perfd.thresholds import THRESHOLDS

_FEWEST_EARLIER = 10
"""Lines from which the usual step time and its scatter are known."""
_SIGMAS = 4.0
"""Of the job's own scatter: by chance three steps in a row are never so far out."""
_CLEAR_COUNT, _CLEAR_S, _CLEAR_RATIO, _CLEAR_SIGMAS = 2, 2.0, 0.25, 3.0
"""Or this number of lines in a row that take this many seconds, each longer than usual by this share and this
multiple of the job's own standard deviation. Chosen: an alert is to come within three steps, and a look after
two of them leaves a second and more for it."""
_JUST_BEFORE = 8
"""Lines whose median is usual for those: a young job has no more, and earlier faults are left out. Chosen."""
_NEWEST = 50
"""Lines in which a growth is looked for, and which are not part of the baseline."""
_NEWEST_SHARE = 4
"""In a young job only the newest quarter is not part of it: a few early lines would not show the scatter."""
_QUIET_PERIODS = 2
"""A stall that has not come again for this many of its periods is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeChange:
    """How long a step took before, and by how much longer the newest ones are for as long as that lasts."""

    baseline_s: float
    """Median of the lines before the newest 50; in a young job, before the newest quarter."""
    growth_ratio: float
    """Newest steps over the baseline, less 1; 0 where no growth has lasted."""


def step_time_change(steps: StepTable, events: Sequence[Event]) -> StepTimeChange | None:
    """The growth of a job's step time, lasting or recurring; None with too few steps.

    A step is long when it takes a tenth more than the baseline, and more than the job's own scatter explains.
    A lasting growth begins with three long lines in a row, or with two that are longer by a quarter than
    those just before, and ends with three in a row that are not. A recurring one is a stall that came three
    times; its growth is the mean over its last two periods, and it ends when the stall has stayed away for
    two. What has lasted for most of the job is its usual pace, and so is what recurs from its start, as
    evaluations do.
    """
    times = steps.step_time_s[steady_rows(steps, events).unmarked]
    run = THRESHOLDS.step_regression_count
    earlier = times[: len(times) - max(run, min(_NEWEST, len(times) // _NEWEST_SHARE))]
    baseline_s = median_of(earlier)
    if len(earlier) < _FEWEST_EARLIER or baseline_s is None:
        return _clear_change(times, run)
    limit_s = _limit_s(baseline_s, near_sigma_of(earlier, run))
    newest = times[-_NEWEST:]
    grown_s = _lasting_s(newest, newest > limit_s, run) or _recurring_s(times, times > limit_s, run)
    if grown_s is None:
        return _clear_change(times, run) or StepTimeChange(baseline_s=baseline_s, growth_ratio=0.0)
    return StepTimeChange(baseline_s=baseline_s, growth_ratio=grown_s / baseline_s - 1)


def _limit_s(usual_s: float, scatter_s: float) -> float:
    """From where on a step is long."""
    return usual_s + max(THRESHOLDS.step_regression_ratio * usual_s, _SIGMAS * scatter_s)


def _clear_change(times: Floats, run: int) -> StepTimeChange | None:
    """The growth that began with lines far longer than those just before them; None where none lasts."""
    newest = times[-(_NEWEST + _JUST_BEFORE) :]
    if len(newest) < _JUST_BEFORE + _CLEAR_COUNT:
        return None
    usual_s = np.median(sliding_window_view(newest, _JUST_BEFORE)[:-_CLEAR_COUNT], axis=1)
    first = sliding_window_view(newest[_JUST_BEFORE:], _CLEAR_COUNT)
    scatter_s = near_sigma_of(times[:-_CLEAR_COUNT], run)
    limits_s = usual_s + np.maximum(_CLEAR_RATIO * usual_s, _CLEAR_SIGMAS * scatter_s)
    began = np.flatnonzero((first.min(axis=1) > limits_s) & (first.sum(axis=1) >= _CLEAR_S))
    if not len(began):
        return None
    before_s = float(usual_s[began[-1]])
    since = newest[_JUST_BEFORE + began[-1] :]
    if _last_run(since <= _limit_s(before_s, scatter_s), run) >= 0:
        return None
    return StepTimeChange(baseline_s=before_s, growth_ratio=float(np.median(since)) / before_s - 1)


def _lasting_s(newest: Floats, long: Bools, run: int) -> float | None:
    """Median since usual steps ended; None when the newest run of equal steps was not of long ones."""
    began, ended = _last_run(long, run), _last_run(~long, run)
    return float(np.median(newest[ended + run :])) if began > ended else None


def _recurring_s(times: Floats, long: Bools, count: int) -> float | None:
    """Mean over the last periods of a stall; None unless it came so many times, began, and goes on."""
    places = np.flatnonzero(long)
    if len(places) < count or len(times) - places[-count] > _NEWEST:
        return None
    first, last = int(places[-count]), int(places[-1])
    longest_quiet = _QUIET_PERIODS * (last - first) / (count - 1)
    if len(times) - 1 - last > longest_quiet:
        return None
    # One step may have been long before it began.
    quiet = np.diff(places, prepend=-1) - 1
    if not bool((quiet[: 1 - count] >= longest_quiet).any()):
        return None
    return float(np.mean(times[first + 1 : last + 1]))


def _last_run(flags: Bools, length: int) -> int:
    """Where the last `length` flags in a row that are all set begin; before all others if there are none."""
    if len(flags) < length:
        return -length
    runs = sliding_window_view(flags, length).all(axis=1)
    found = np.flatnonzero(runs)
    return int(found[-1]) if len(found) else -length
