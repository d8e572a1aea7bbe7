"""What comes once per step: reductions of a number, and steps that the log's lines count."""

from __future__ import annotations

import numpy as np

from perfd.aggregator.operations.growable_arrays import NewestColumns
from perfd.analysis.data.job_data import Floats
from perfd.analysis.operations.pause_pattern import are_numbered

_NUMBERS = 2048
"""Newest reductions of a scalar that are kept, over all communicators."""
_LINES = 64
"""Newest lines of several steps that are kept."""
FEWEST_LINE_STEPS = 10
"""Least steps between the first line and the last to count operations or repeats per step: a line comes up to
a tenth of a step sooner or later than others, and one operation may be counted to either side."""


class StepMarks:
    """The newest scalar reductions of a rank, and the newest lines of its job's log."""

    def __init__(self) -> None:
        self._numbers = NewestColumns(1, _NUMBERS)
        self._lines = NewestColumns(2, _LINES)

    @property
    def lines(self) -> Floats:
        """(2, n): steps of the log's newest lines of several steps, and when they came, in seconds."""
        return self._lines.held

    def put_numbers(self, starts_us: Floats) -> None:
        """Add reductions of a scalar that began at (1, n) microseconds, on any communicator."""
        self._numbers.put(starts_us)

    def put_line(self, step: int, unix_s: float) -> None:
        """Add a line of the log that times several steps; a lower step begins anew."""
        if self.lines.shape[1] and step <= self.lines[0, -1]:
            self._lines.clear()
        self._lines.put(np.array([[step], [unix_s]], dtype=np.float64))

    def show_steps(self, starts_us: Floats, until_us: float) -> bool:
        """Whether each of (n,) operations, by when they began, is a step; all until a time are known."""
        return are_numbered(starts_us, self._numbers.held[0]) or self._are_counted(starts_us, until_us)

    def _are_counted(self, starts_us: Floats, until_us: float) -> bool:
        """Whether there are as many between two lines as these count."""
        steps, unix_s = self.lines
        within = (unix_s * 1e6 >= starts_us[0]) & (unix_s * 1e6 <= until_us)
        if not within.any() or np.ptp(steps[within]) < FEWEST_LINE_STEPS:
            return False
        more = np.searchsorted(starts_us, unix_s[within] * 1e6) - steps[within]
        return bool(np.ptp(more) <= 1)
