"""Steps by NCCL operations as rows, also of a job whose log has a line every few steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfd.aggregator.jobs.step_tables import StepRows
from perfd.aggregator.operations import OperationSteps
from perfd.aggregator.operations.exact_steps import FoundSteps
from perfd.analysis.data.job_data import OperationPace, StepsWithinLines, StepTable
from perfd.model import CollectiveTimes

_PRINTED_S = 0.25
"""A line comes before the next step ends, and with some clocks before its own step does."""


class OperationStepRows:
    """What operations show of steps, and the newest rows of that."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._found = OperationSteps()
        self._rows = StepRows(limit)

    @property
    def pace(self) -> OperationPace | None:
        """Which operations show steps; None before the first."""
        return self._found.pace

    def put(self, times: CollectiveTimes, sent_unix_s: float) -> FoundSteps:
        """Add what one rank did; returns the rows that are complete by it."""
        found = self._found.put(times)
        if found.anew:
            self._rows = StepRows(self._limit)
        for row in found.rows:
            self._rows.put(row, sent_unix_s)
        return found

    def within(self, lines: StepTable) -> StepsWithinLines | None:
        """Steps one by one, by the numbers of the log's lines; None unless the newest covers several."""
        pace, found = self.pace, self._rows.table()
        if pace is None or not pace.exact or not len(lines) or lines.steps_covered[-1] < 2:
            return None
        if not len(found):
            return None
        ended = np.searchsorted(found.time_unix_s, lines.time_unix_s + _PRINTED_S * lines.step_time_s)
        since_s = lines.time_unix_s - found.time_unix_s[ended - 1]
        # Operations may arrive later than a line: use the newest line whose own step has its operations.
        known = np.flatnonzero((ended > 0) & (since_s < lines.step_time_s))
        if not len(known):
            return None
        shift = int(lines.step[known[-1]] - found.step[ended[known[-1]] - 1])
        pauses = pace.pauses and replace(pace.pauses, step=pace.pauses.step + shift)
        steps = replace(found, step=found.step + shift)
        return StepsWithinLines(steps=steps, pace=replace(pace, pauses=pauses))
