"""Steps by NCCL operations as rows, also of a job whose log has a line every few steps."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from perfd.aggregator.jobs.step_tables import StepRows
from perfd.aggregator.operations import HANDED_ON, FoundSteps, OperationSteps, StepMarks
from perfd.analysis.data.job_data import Bools, Floats, Ints, OperationPace, StepTable
from perfd.analysis.data.robust_stats import median
from perfd.model import CollectiveTimes, TrainingStep

_PRINTED_S = 0.25
"""A line comes before the next step ends, and with some clocks before its own step does."""
_LINES, _FEWEST_LINES = 64, 6
"""Newest lines without times that are kept, and how many say how the log counts."""
_MOST_TOGETHER = 64
"""Chosen: models have fewer layers that are alike per bucket of gradients, and steps fewer micro-batches."""
_UNSURE = 0.3
"""How far from a whole number the steps by operations in one of the log's may seem."""
_PART, _NEWEST_LINES, _NEWEST_ROWS = 0.5, 3, 64
"""Of a step by the shortest of the newest lines: the median of the newest rows is less where these are parts
of steps, such as micro-batches. Chosen."""
_LEAST_ROWS = 0.5
"""Of the steps that lines count, as how many rows there must be; with fewer, a row covers several. Chosen."""
_STANDARD_ERRORS = 3.0
"""Of that ratio, which must be within the same distance. Chosen: chance exceeds it in fewer than 1 of 300."""
_STARTING = 5
"""First steps of a line marked as warm-up that count as the start of the job. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsWithinLines:
    """Steps one by one, by operations, of a job whose log has a line every few steps; numbered as there."""

    steps: StepTable
    pace: OperationPace


class OperationStepRows:
    """What operations show of steps, and the newest rows of that."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._marks = StepMarks()
        self._found = OperationSteps(self._marks)
        self._earlier_pace: OperationPace | None = None
        """That of the process before, until the present one has shown a step."""
        self._rows = StepRows(limit)
        self._lines: deque[tuple[int, float]] = deque(maxlen=_LINES)
        self._compared: tuple[int, float] | None = None
        """The newest line that was compared with the rows until then, which may arrive before or after it."""
        self._as_the_log = False
        """Whether lines have shown that its steps are those of the log."""
        self._of_log = 1
        """Steps of the log in one by operations."""
        self._recounted = False
        """Whether the rows so far count otherwise since."""
        self._joined = 1
        """How many of the rows so far lines have shown to be one step."""
        self._micro_batches: int | None = None
        """Of a step, as the job describes itself."""

    @property
    def pace(self) -> OperationPace | None:
        """Which operations show steps; None before the first."""
        pace = self._found.pace or self._earlier_pace
        if pace is None or not self._as_the_log:
            return pace
        pauses = pace.pauses and replace(pace.pauses, step=pace.pauses.step * self._of_log)
        return replace(pace, doubt=None, per_step=pace.per_step / self._of_log, pauses=pauses)

    def describe(self, micro_batches: int | None) -> None:
        """Note of how many micro-batches the job says that a step is."""
        self._micro_batches = micro_batches

    def rank_started(self, rank: int) -> None:
        """A rank has another process: the communicators of the one before are gone, and will not go on."""
        if rank == self._found.rank:
            self._earlier_pace = self._found.pace or self._earlier_pace
            self._found = OperationSteps(self._marks, (self._rows.last_step or 0) / self._of_log)

    def put(self, times: CollectiveTimes, sent_unix_s: float) -> FoundSteps:
        """Add what one rank did; returns the rows that are complete by it."""
        return self._taken(self._found.put(times), sent_unix_s)

    def end(self, job: str, unix_s: float) -> FoundSteps:
        """The job has ended: returns the rows that waited for more."""
        return self._taken(self._found.end(job), unix_s)

    def _taken(self, found: FoundSteps, sent_unix_s: float) -> FoundSteps:
        if found.anew:
            if found.rows and self._joined > 1:
                found = replace(found, rows=[*self._rows_joined(found.rows[0]), *found.rows])
            self._joined = 1
            self._rows = StepRows(self._limit)
            self._lines.clear()
            self._as_the_log, self._of_log, self._recounted = False, 1, False
        if self._of_log > 1:
            found = replace(found, rows=[_of_several(row, self._of_log) for row in found.rows])
        if self._recounted and found.rows:
            before = self._rows_before(found.rows[0].job)
            self._rows, self._recounted = StepRows(self._limit), False
            found = FoundSteps([*before, *found.rows], anew=True)
        for row in found.rows:
            self._rows.put(row, sent_unix_s)
        if found.rows:
            self._compare()
            self._count_micro_batches()
        return found

    def _count_micro_batches(self) -> None:
        """Count what a group hands on in each micro-batch as the job describes its steps."""
        pace = self._found.pace
        if pace is None or pace.certain or pace.operation not in HANDED_ON or self._micro_batches is None:
            return
        if self._micro_batches == 1:
            self._found.settle()
        else:
            self._joined = self._micro_batches
            self._found.take_together(self._micro_batches)

    def _rows_before(self, job: str) -> list[TrainingStep]:
        """The rows so far, by the steps of the log."""
        table = self._rows.table()
        columns = (table.step, table.time_unix_s, table.step_time_s, table.steps_covered)
        return [
            _of_several(
                TrainingStep(
                    job=job,
                    step=step,
                    time_unix_ns=round(at_s * 1e9),
                    step_time_s=None if math.isnan(took_s) else took_s,
                    steps_covered=covered,
                ),
                self._of_log,
            )
            for step, at_s, took_s, covered in zip(*(one.tolist() for one in columns), strict=True)
        ]

    def _rows_joined(self, first: TrainingStep) -> list[TrainingStep]:
        """What rows show of whole steps before the first one that is known, back to an unclear one."""
        table, joined = self._rows.table(), []
        covered = table.steps_covered
        # Rows of several steps as one for each of them, of the mean time.
        after = np.repeat(covered.cumsum(), covered) - np.arange(covered.sum()) - 1
        each_s, number = np.repeat(table.step_time_s, covered), np.repeat(table.step, covered) - after
        end_s = np.repeat(table.time_unix_s, covered) - after * np.nan_to_num(each_s)
        # In a longer row something else came between, such as an evaluation.
        each_s[np.repeat(covered, covered) > self._joined] = np.nan
        begin_s = (first.time_unix_ns or 0) / 1e9 - (first.step_time_s or 0.0) * first.steps_covered
        # That is when the step before ended, besides a pause.
        end = int(np.searchsorted(end_s, begin_s + float(median(each_s[-_NEWEST_ROWS:])) / 2))
        step = first.step - first.steps_covered
        while step > 0 and (begin := end - self._joined) >= 0:
            took_s = float(each_s[begin:end].sum())
            if math.isnan(took_s) or number[end - 1] - number[begin] != self._joined - 1:
                break
            time_unix_ns = round(float(end_s[end - 1]) * 1e9)
            joined.append(
                TrainingStep(job=first.job, step=step, time_unix_ns=time_unix_ns, step_time_s=took_s)
            )
            end, step = begin, step - 1
        return joined[::-1]

    def line(self, step: int, unix_s: float) -> None:
        """Add a line of the log that has a step and no time: it may count what operations show otherwise.

        Layers that are all alike repeat within a step, and sharded parameters in each micro-batch; the log
        says how often.
        """
        if self._lines and step <= self._lines[-1][0]:
            if step < self._lines[-1][0]:
                self._lines.clear()
            return
        self._lines.append((step, unix_s))
        self._compare()

    def _compare(self) -> None:
        """Compare what lines and operations count, once these are known until the newest line."""
        if not self._lines or self._lines[-1] == self._compared:
            return
        table = self._rows.table()
        if not len(table) or table.time_unix_s[-1] < self._lines[-1][1]:
            return
        self._compared = self._lines[-1]
        together = self._together(table) if len(self._lines) >= _FEWEST_LINES else None
        if together == 1:
            self._as_the_log = True
            self._found.settle()
        elif together is not None and together > 1:
            self._lines.clear()
            self._joined = round(together)
            self._found.take_together(self._joined)
        elif together is not None:
            self._lines.clear()
            self._of_log = round(1 / together)
            self._as_the_log = self._recounted = True

    def timed_line(self, step: int, unix_s: float) -> None:
        """Add a line of the log with the time of steps: operations count the steps between two of them."""
        self._marks.put_line(step, unix_s)

    def _together(self, found: StepTable) -> float | None:
        """How many of the found steps are one of the log's, or which part of one is; None if not certain."""
        if len(found) < 2:
            return None
        step, unix_s = np.array(self._lines).T
        known = (unix_s >= found.time_unix_s[0]) & (unix_s <= found.time_unix_s[-1])
        if known.sum() < _FEWEST_LINES:
            return None
        by_log = step[known] - step[known].mean()
        shown = np.interp(unix_s[known], found.time_unix_s, found.step)
        slope = float((by_log * shown).sum() / (by_log**2).sum())
        missed = shown - shown.mean() - slope * by_log
        error = float(np.sqrt((missed**2).sum() / (len(missed) - 2) / (by_log**2).sum()))
        if self._of_log == 1 and 0 < slope < 1 - _UNSURE:
            whole = _whole(1 / slope, error / slope**2)
            return None if whole is None else 1 / whole
        return _whole(slope, error)

    def within(self, lines: StepTable) -> StepsWithinLines | None:
        """Steps one by one, by the numbers of the log's lines; None unless the newest covers several.

        Nor where lines show operations to repeat within a step: their times are not those of steps.
        """
        pace, found = self.pace, self._rows.table()
        if pace is None or not pace.exact or not len(lines) or not len(found):
            return None
        if len(lines) == 1 and (pace.certain or _is_alone(lines, found.time_unix_s[-1])):
            return _numbered(found, pace, lines, int(lines.step[0] - lines.steps_covered[0]))
        shift = None if lines.steps_covered[-1] < 2 else _shift(found, pace, lines)
        return None if shift is None else _numbered(found, pace, lines, shift)


def _shift(found: StepTable, pace: OperationPace, lines: StepTable) -> int | None:
    """How much higher the log's numbers are; None where rows are not its steps, or that is not certain."""
    ended = np.searchsorted(found.time_unix_s, lines.time_unix_s + _PRINTED_S * lines.step_time_s)
    since_s = lines.time_unix_s - found.time_unix_s[ended - 1]
    # Operations may arrive later than a line: use the newest line whose own step has its operations.
    known = np.flatnonzero((ended > 0) & (since_s < lines.step_time_s))
    if not len(known):
        return None
    # Lines of the job's start are longer than its steps.
    usual_s = lines.step_time_s[~lines.warmup]
    rows_s = found.step_time_s[: ended[known[-1]]]
    are_steps = not _are_parts(rows_s, usual_s) if len(usual_s) else pace.certain
    counted = np.ptp(found.step[ended[known[[0, -1]]] - 1])
    if not are_steps or counted < _LEAST_ROWS * np.ptp(lines.step[known[[0, -1]]]):
        return None
    return int(lines.step[known[-1]] - found.step[ended[known[-1]] - 1])


def _numbered(found: StepTable, pace: OperationPace, lines: StepTable, shift: int) -> StepsWithinLines:
    """The rows by the numbers of the log, which are so many more."""
    pauses = pace.pauses and replace(pace.pauses, step=pace.pauses.step + shift)
    numbers = found.step + shift
    steps = replace(found, step=numbers, warmup=found.warmup | _are_starting(numbers, lines))
    return StepsWithinLines(steps=steps, pace=replace(pace, pauses=pauses))


def _is_alone(first: StepTable, until_unix_s: float) -> bool:
    """Whether the log has only its first line though a step was due until then.

    No later step takes longer than that one. Logs with a line every many steps often have one of the first.
    """
    return bool(until_unix_s - first.time_unix_s[0] > first.step_time_s[0])


def _are_starting(numbers: Ints, lines: StepTable) -> Bools:
    """Which steps belong to the start of the job, according to the lines that cover them."""
    begun = (lines.step - lines.steps_covered)[lines.warmup]
    ends = np.minimum(lines.step[lines.warmup], begun + _STARTING)
    return np.asarray(((numbers[:, None] > begun) & (numbers[:, None] <= ends)).any(axis=1))


def _are_parts(rows_s: Floats, lines_s: Floats) -> bool:
    """Whether rows are far shorter than the steps of the newest lines."""
    by_lines_s = float(np.fmin.reduce(lines_s[-_NEWEST_LINES:]))
    return float(median(rows_s[-_NEWEST_ROWS:])) < _PART * by_lines_s


def _whole(ratio: float, error: float) -> int | None:
    """The whole number that a ratio with this standard error is; None if that is not certain."""
    whole = round(ratio)
    sure = abs(ratio - whole) <= _UNSURE and _STANDARD_ERRORS * error <= _UNSURE
    return whole if sure and 1 <= whole <= _MOST_TOGETHER else None


def _of_several(row: TrainingStep, each: int) -> TrainingStep:
    """A row whose steps are so many each."""
    took_s = None if row.step_time_s is None else row.step_time_s / each
    return replace(row, step=row.step * each, steps_covered=row.steps_covered * each, step_time_s=took_s)
