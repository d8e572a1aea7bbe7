"""Step times of a log whose lines show none: by when its lines came."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from numpy.typing import NDArray

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

_LINES_OF_PART = 10
"""Of a log with lines that are older than those before them, parts of fewer lines have no times. Chosen."""


def timed_by_arrival(steps: StepTable, *, exact: bool = False) -> StepTable:
    """The steps, with a time on the lines that close a stretch long enough to be measured.

    Such a line covers all steps of its stretch; the lines between have no time and
    cover none. `exact`: lines have the time at which they were written, and not at
    which they were read. Steps that have times, or too few lines, are returned as
    they are. Where the clock stepped back, no stretch goes on.
    """
    if len(steps) < 2 or bool(np.isfinite(steps.step_time_s).any()):
        return steps
    time_s, covered = steps.step_time_s.copy(), steps.steps_covered.copy()
    turns = np.flatnonzero(np.diff(steps.time_unix_s) < 0) + 1
    for begin, end in itertools.pairwise([0, *turns.tolist(), len(steps)]):
        # How often a log is read shows in many lines only; clocks that disagree give parts of a line or two.
        if end - begin >= _LINES_OF_PART or not len(turns):
            _time_part(steps, slice(begin, end), time_s, covered, exact=exact)
    return dataclasses.replace(steps, step_time_s=time_s, steps_covered=covered)


def _time_part(
    steps: StepTable, part: slice, time_s: Floats, covered: NDArray[np.int64], *, exact: bool
) -> None:
    """Write the times, and how many steps they cover, of a part in which the clock never stepped back."""
    own_s = steps.time_unix_s[part]
    # Lines that were read together came at any time before: only the last one is near its time.
    rows = np.flatnonzero(np.append(np.diff(own_s) > 0, True))
    if len(rows) < 2:
        return
    came_s = own_s[rows]
    interval_s = _EXACT_TO_S if exact else _reading_interval_s(came_s, together=len(rows) < len(own_s))
    shortest_s = _READS_PER_TIME * interval_s
    rows += part.start
    begin = 0
    while (end := _at_least_after(came_s, begin, shortest_s)) < len(rows):
        row, before = rows[end], rows[begin]
        covered[before + 1 : row] = 0
        covered[row] = steps.step[row] - steps.step[before]
        time_s[row] = (came_s[end] - came_s[begin]) / covered[row]
        begin = end


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
