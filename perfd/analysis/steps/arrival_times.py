"""Step times of a log whose lines show none: by when its lines came."""

from __future__ import annotations

import dataclasses

import numpy as np

from perfd.analysis.data.job_data import Floats, StepTable

_READS_PER_TIME = 30.0
"""A time covers at least so many intervals in which a log is read: not knowing when in an interval a line
came shifts it by 3.3% at most, and the median of several by less than 2%."""
_EXACT_TO_S = 1e-3
"""How exactly a line's time is known where it is that of its writing: through a pipe or two."""
_PAUSE_RATIO = 3.0
"""Gaps longer than so many usual ones are pauses, such as evaluations; they say nothing of the reader."""
_RARE_RATIO = 0.01
"""Of the gaps, those below and above say nothing of the reader, either: single slow steps."""


def timed_by_arrival(steps: StepTable, *, exact: bool = False) -> StepTable:
    """The steps, with a time on the lines that close a stretch long enough to be measured.

    Such a line covers all steps of its stretch; the lines between have no time and
    cover none. `exact`: lines have the time at which they were written, and not at
    which they were read. Steps that have times, or too few lines, are returned as
    they are.
    """
    if len(steps) < 2 or bool(np.isfinite(steps.step_time_s).any()):
        return steps
    # Lines that were read together came at any time before: only the last one is near its time.
    rows = np.flatnonzero(np.append(np.diff(steps.time_unix_s) > 0, True))
    came_s = steps.time_unix_s[rows]
    if len(rows) < 2 or bool((np.diff(came_s) <= 0).any()):
        return steps
    interval_s = _EXACT_TO_S if exact else _reading_interval_s(came_s, together=len(rows) < len(steps))
    shortest_s = _READS_PER_TIME * interval_s
    time_s, covered = steps.step_time_s.copy(), steps.steps_covered.copy()
    begin = 0
    while (end := _at_least_after(came_s, begin, shortest_s)) < len(rows):
        row, before = rows[end], rows[begin]
        covered[before + 1 : row] = 0
        covered[row] = steps.step[row] - steps.step[before]
        time_s[row] = (came_s[end] - came_s[begin]) / covered[row]
        begin = end
    return dataclasses.replace(steps, step_time_s=time_s, steps_covered=covered)


def _at_least_after(came_s: Floats, begin: int, shortest_s: float) -> int:
    return max(begin + 1, int(np.searchsorted(came_s, came_s[begin] + shortest_s)))


def _reading_interval_s(came_s: Floats, *, together: bool) -> float:
    """How far apart the log was read: the gaps themselves, or the scatter of lines slower than that."""
    gaps_s = np.diff(came_s)
    usual_s = float(np.median(gaps_s))
    if together:
        return usual_s
    low_s, high_s = np.quantile(gaps_s[gaps_s <= _PAUSE_RATIO * usual_s], [_RARE_RATIO, 1 - _RARE_RATIO])
    return float(max(usual_s - low_s, high_s - usual_s))
