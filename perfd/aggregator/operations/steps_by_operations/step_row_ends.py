"""Where rows of steps end; anywhere in a step where it is unknown when operations of a report ran."""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfd.aggregator.operations.steps_by_operations.operation_reports import ReportEnd
from perfd.aggregator.operations.steps_by_operations.operation_stream import Cycle, OperationStream
from perfd.model import StepDoubt, TrainingStep

_PARTIAL_RATIO = 0.9
"""Of the usual operations of its time: a report with fewer may be the job's last one. Chosen."""
_LOST_RATIO = 0.1
"""Of a job's last step, that may be unreported. Chosen."""
ALL_REDUCE = "AllReduce"
SILENT_NS = 30 * 10**9
"""A stream that sets the pace and says nothing for so long is gone, as after a restart."""


@dataclass(frozen=True, slots=True)
class StepPace:
    """A stream that shows steps."""

    stream: OperationStream
    cycle: Cycle
    repeats: int | None
    """Micro-batches of a step; None where that is not certain."""
    counted: bool = True
    """Whether what ends a step, and no pause alone, shows that repeats are steps."""
    by_log: bool = False
    """Whether the job's log says how many repeats a step has."""
    numbered: bool = False
    """Whether a number, such as the norm of gradients, is reduced once a repeat."""

    @property
    def per_step(self) -> float:
        return self.cycle.operations * (self.repeats or 1)

    @property
    def settled(self) -> bool:
        """Whether the operations themselves show that repeats are steps."""
        return self.repeats is not None and self.counted

    @property
    def doubt(self) -> StepDoubt | None:
        """What its steps may be instead, where it is unknown when operations began."""
        once = self.repeats == 1 and (self.numbered or self.sharded)
        return None if self.settled and (self.by_log or once) else StepDoubt.MICRO_BATCHES

    @property
    def sharded(self) -> bool:
        return self.stream.operation != ALL_REDUCE


@dataclass(frozen=True, slots=True)
class RowEnd:
    """Where the newest row ended."""

    stream: OperationStream
    per_step: float
    """Operations of the stream."""
    settled: bool
    """Whether the operations themselves show that repeats are steps."""
    seen: int
    sequence: int
    time_unix_ns: int
    step: float
    size_bytes: int
    """Of the stream's largest operation that repeats."""
    doubt: StepDoubt | None
    """What its steps may be instead."""
    exact: bool = False
    """Whether it is where a step ended, not anywhere in one."""

    def each_s(self, report: ReportEnd) -> float | None:
        """Time of each operation from here to the end of a report; None if there are none."""
        more = report.seen - self.seen
        return (report.unix_ns - self.time_unix_ns) / 1e9 / more if more > 0 else None

    def outranks(self, cycle: Cycle, now_unix_ns: int) -> bool:
        """Whether what showed steps lately is larger."""
        lately = now_unix_ns - self.time_unix_ns < SILENT_NS
        return self.settled and lately and cycle.size_bytes < self.size_bytes


def row_end(pace: StepPace, report: ReportEnd, step: float) -> RowEnd:
    """A row ends with this report of the stream, at this step."""
    return RowEnd(
        stream=pace.stream,
        per_step=pace.per_step,
        settled=pace.settled,
        doubt=pace.doubt,
        seen=report.seen,
        sequence=report.sequence,
        time_unix_ns=report.unix_ns,
        step=step,
        size_bytes=pace.cycle.size_bytes,
    )


def is_partial(mark: RowEnd, before: ReportEnd, newest: ReportEnd) -> bool:
    """Whether so few operations came with the newest report that the job may have ended within its time."""
    each_s = mark.each_s(before)
    expected = (newest.unix_ns - before.unix_ns) / 1e9 / each_s if each_s else 0.0
    return newest.seen - before.seen < _PARTIAL_RATIO * expected


def whole_step(step: float) -> float:
    """The step at a job's end, which is mostly a whole one."""
    return max(step, float(math.floor(step + _LOST_RATIO)))


def row_between(job: str, start: RowEnd, end: RowEnd) -> TrainingStep | None:
    """The row of the steps after one row's end until another; None without one."""
    covered = int(end.step) - int(start.step)
    if covered <= 0:
        return None
    return TrainingStep(
        job=job,
        step=int(end.step),
        time_unix_ns=end.time_unix_ns,
        step_time_s=(end.time_unix_ns - start.time_unix_ns) / 1e9 / (end.step - start.step),
        steps_covered=covered,
    )
