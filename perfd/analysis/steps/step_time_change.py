"""A growth of step time: the newest steps by the job's earlier ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from perfd.analysis.data.job_data import Bools, Floats, Ints, StepTable
from perfd.analysis.data.robust_stats import MAD_TO_SIGMA, median, median_of, near_sigma_of, sigma_of
from perfd.analysis.steps.steady_steps import lines_are_means, steady_rows
from perfd.model import Event
from perfd.thresholds import THRESHOLDS

_JUST_BEFORE = 8
"""Lines whose median is usual for those that follow: a young job has no more, and earlier faults are left
out. Chosen."""
_FEWEST, _CLEAR_RATIO = 2, 0.25
"""So few lines must be longer by this share, as two odd ones in a row are common. Chosen: an alert is to come
within three steps, and a look after two of them leaves a second and more for it."""
_CLEAR_BEFORE = 6
"""So few lines before do for three that are longer by that share, in a job that has no more yet. Chosen: two
odd ones in a row are more common in its first steps."""
_LEAST_S = 2.0
"""Longer lines that take less time in all may be noise: one stall covers many short ones. Chosen."""
_MOSTLY = 0.75
"""Of the lines since a growth began, that are nearer to the new step time than to the usual one. Chosen."""
_ERRORS = 5.0
"""Standard errors of the difference of both by which chance is ruled out. Chosen: at each look fifty moments
are tried at which a growth may have begun, and steps that follow each other are alike."""
_SIGMAS = 4.0
"""Of the job's own scatter, by which a single step is a stall."""
_ALIKE, _CLEAR_ALIKE = 0.5, 0.75
"""Of what the longest of three stalls, or of two, adds to a step, what each other one adds. Chosen."""
_CLEAR_STALL_RATIO, _CLEAR_PERIOD_STEPS = 1.0, 10
"""Two stalls do if each adds a whole step, and they are so few steps apart: of pauses by chance most are
shorter, farther apart, or unlike. Chosen."""
_BY_CHANCE = 0.01
"""How likely the second one may follow so soon, in a job that has had as many such steps before. Chosen."""
_FEWEST_EARLIER = 10
"""Lines from which a usual step is known, and its scatter, that a stall is compared with."""
_NEWEST, _NEWEST_S = 50, 5.0
"""Lines in which a growth is looked for. Chosen: shorter ones count as means over several, so that these take
so many seconds, and a growth is seen for a while."""
_DOUBTED_LINE_S = 0.5
"""Rows that may be micro-batches count as means over so much time: parts of a step differ more than steps do.
Measured: in 89 recorded loops, growth without a fault in 1 instead of 4."""
_NEWEST_SHARE = 4
"""In a young job only the newest quarter is not part of the baseline: a few early lines would not show the
scatter."""
_LEAST_PERIOD = 3
"""Steps from one stall to the next: what comes more often alternates, or lasts."""
_QUIET_PERIODS = 2
"""A stall that has not come again for this many of its periods is over."""
_PACE_STEPS, _PACE_LINES = 8, 3
"""Whose median is the current pace: of a few, one may be an evaluation. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeChange:
    """How long a step took before, and by how much longer the newest ones are for as long as that lasts."""

    baseline_s: float
    """Median of the lines just before a growth; else of those before the newest 50, in a young job before the
    newest quarter."""
    growth_ratio: float
    """Newest steps over the baseline, less 1; 0 where no growth has lasted."""


def step_time_change(
    steps: StepTable, events: Sequence[Event], *, may_be_parts: bool = False
) -> StepTimeChange | None:
    """The growth of a job's step time, lasting or recurring; None with too few steps.

    `may_be_parts` is whether what seems to be a step may be a micro-batch.

    A lasting growth is a tenth, and more than the job's own scatter explains, of lines that take two seconds
    in all, over those just before. It ends with three usual lines in a row. A recurring one is a stall that
    came three times at equal intervals, or twice where it is clear; its growth is the mean over its last two
    periods, or the one, and it ends when the stall has stayed away for two. What has lasted for long is the
    usual pace, and so is what recurs from a job's start, as evaluations do.
    """
    rows = steady_rows(steps, events).unmarked
    times = steps.step_time_s[rows]
    least_s = _DOUBTED_LINE_S if may_be_parts else _NEWEST_S / _NEWEST
    lines = _means(times, times * steps.steps_covered[rows], least_s)
    grown = _lasting(*lines, means=lines_are_means(steps, rows))
    if grown is not None:
        return grown
    run = THRESHOLDS.step_regression_count
    earlier = times[: len(times) - max(run, min(_NEWEST, len(times) // _NEWEST_SHARE))]
    baseline_s = median_of(earlier)
    if len(earlier) < _FEWEST_EARLIER or baseline_s is None:
        return None
    # Stalls widen differences of neighbors for steps on both sides, and a change of level the spread of all.
    scatter_s = min(near_sigma_of(earlier, run), sigma_of(earlier) or 0.0)
    longer_s = max(THRESHOLDS.step_regression_ratio * baseline_s, _SIGMAS * scatter_s)
    long = times > baseline_s + longer_s
    stalled_s = _recurring_s(times, steps.step[rows], long, run)
    if stalled_s is not None and not _alike(times[long][-run:] - baseline_s, _ALIKE):
        stalled_s = None
    clear = long & (times > (1 + _CLEAR_STALL_RATIO) * baseline_s)
    if stalled_s is None and _alike(times[clear][-2:] - baseline_s, _CLEAR_ALIKE):
        stalled_s = _twice_s(times, times * steps.steps_covered[rows], steps.step[rows], clear)
    growth = 0.0 if stalled_s is None else stalled_s / baseline_s - 1
    return StepTimeChange(baseline_s=baseline_s, growth_ratio=growth)


def _lasting(times: Floats, took_s: Floats, *, means: bool) -> StepTimeChange | None:
    """The growth that lasts, by lines that took so long in all; None without one.

    Lines that are `means` over several steps are less moved by a pause.
    """
    run = THRESHOLDS.step_regression_count
    unknown = _JUST_BEFORE - _CLEAR_BEFORE
    times, took_s = np.pad(times, (unknown, 0), constant_values=np.nan), np.pad(took_s, (unknown, 0))
    if len(times) < _JUST_BEFORE + _FEWEST:
        return None
    newest = min(len(times), _JUST_BEFORE + _NEWEST)
    scatter_s = near_sigma_of(times[:-_FEWEST], run)
    # One line that is not longer, or two, do not end it.
    for end in range(newest, max(newest - run, _JUST_BEFORE + _FEWEST - 1), -1):
        earlier = times[: 0 if means else len(times) - newest + end - _FEWEST]
        grown = _grown(times[-newest:][:end], took_s[-newest:][:end], earlier, scatter_s)
        if grown is not None:
            return grown
    return None


def _means(times: Floats, took_s: Floats, least_s: float) -> tuple[Floats, Floats]:
    """The same lines, of shorter ones means over several, up to the newest."""
    line_s = float(np.median(took_s[-_NEWEST:])) if len(took_s) else least_s
    each = math.ceil(least_s / line_s)
    whole = len(times) % each
    return times[whole:].reshape(-1, each).mean(axis=1), took_s[whole:].reshape(-1, each).sum(axis=1)


def _grown(times: Floats, took_s: Floats, earlier: Floats, scatter_s: float) -> StepTimeChange | None:
    """The growth up to the last of these lines, whose scatter is given; None if that one is not longer.

    By those before the last two, the `earlier` ones, two lines may be pauses.
    """
    usual_s = median(sliding_window_view(times, _JUST_BEFORE)[:-_FEWEST])
    # The newest two are longer than the middle of both times, or it did not begin at that moment.
    may = float(times[-_FEWEST:].min()) > (1 + THRESHOLDS.step_regression_ratio / 2) * usual_s
    for place in np.flatnonzero(may).tolist():
        since, before_s = times[_JUST_BEFORE + place :], float(usual_s[place])
        now_s = float(median(since))
        apart_s = np.abs(times[place : place + _JUST_BEFORE] - before_s)
        known = int(np.isfinite(apart_s).sum())
        young, run = known < _JUST_BEFORE, THRESHOLDS.step_regression_count
        if young and not run <= len(since) <= _JUST_BEFORE:
            continue
        few = young or len(since) == _FEWEST
        least = _CLEAR_RATIO if few else THRESHOLDS.step_regression_ratio
        # Beside so few lines before, those since would widen the scatter.
        near_s = near_sigma_of(times[: _JUST_BEFORE + place], run) if young else scatter_s
        error_s = max(near_s, MAD_TO_SIGMA * float(median(apart_s))) * (1 / len(since) + 1 / known) ** 0.5
        if now_s <= (1 + least) * before_s or now_s - before_s <= _ERRORS * error_s:
            continue
        if len(since) == _FEWEST and _are_pauses(since, before_s, earlier):
            continue
        longer = since > (before_s + now_s) / 2
        lasts = longer[0] and longer[-_FEWEST:].all() and longer.mean() >= _MOSTLY and not _ended(longer)
        if lasts and took_s[_JUST_BEFORE + place :].sum() >= _LEAST_S:
            return StepTimeChange(baseline_s=before_s, growth_ratio=now_s / before_s - 1)
    return None


def _are_pauses(two: Floats, usual_s: float, earlier: Floats) -> bool:
    """Whether two lines may be long by chance: they are unlike, and many of the earlier ones were as long."""
    as_long = np.count_nonzero(_by_themselves(earlier >= two.min()))
    return bool(as_long > _BY_CHANCE * len(earlier)) and not _alike(two - usual_s, _CLEAR_ALIKE)


def _by_themselves(long: Bools) -> Bools:
    """Of lines that are long, those between two that are not: several in a row are another pace."""
    return np.asarray(long & ~np.append(False, long[:-1]) & ~np.append(long[1:], False))


def _ended(longer: Bools) -> bool:
    """Whether enough lines in a row are not longer."""
    run = THRESHOLDS.step_regression_count
    return len(longer) >= run and not sliding_window_view(longer, run).any(axis=1).all()


def _recurring_s(times: Floats, steps: Ints, long: Bools, count: int) -> float | None:
    """Mean over the last periods of a stall; None unless it came so many times, began, and goes on."""
    places = np.flatnonzero(long)
    if len(places) < count or len(times) - places[-count] > _NEWEST:
        return None
    apart = np.diff(steps[places[-count:]])
    if apart[0] < _LEAST_PERIOD or (apart != apart[0]).any():
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


def _alike(added_s: Floats, ratio: float) -> bool:
    """Whether stalls add about as much to a step."""
    return bool(added_s.min(initial=np.inf) >= ratio * added_s.max(initial=0.0))


def _twice_s(times: Floats, took_s: Floats, steps: Ints, clear: Bools) -> float | None:
    """The same of a stall that came twice, is clear by itself, and did not come for two periods before."""
    places = np.flatnonzero(clear)
    if len(places) < 2:
        return None
    first, last = places[-2:].tolist()
    earlier = int(places[-3]) if len(places) > 2 else -1
    near = steps[last] - steps[first] <= _CLEAR_PERIOD_STEPS
    is_new = first - earlier > _QUIET_PERIODS * (last - first)
    if not (near and is_new) or took_s[first : last + 1].sum() < _LEAST_S:
        return None
    stalls = _by_themselves(clear[: first + 1])[:-1]
    by_chance = (last - first) * np.count_nonzero(stalls) > _BY_CHANCE * first
    return None if by_chance else _recurring_s(times, steps, clear, 2)


def newest_step_s(steps: StepTable) -> float | None:
    """The median of the newest lines; None if none has a time."""
    lines = int(np.searchsorted(steps.steps_covered[::-1].cumsum(), _PACE_STEPS)) + 1
    newest_s = steps.step_time_s[-max(lines, _PACE_LINES) :]
    newest_s = newest_s[np.isfinite(newest_s)]
    return float(np.median(newest_s)) if len(newest_s) else None
