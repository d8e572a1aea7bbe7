"""Steps of a job whose log shows none, by its NCCL operations: training repeats itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfd.aggregator.operations.steps_by_operations.confirming_ranks import ConfirmingRanks
from perfd.aggregator.operations.steps_by_operations.exact_steps import ExactSteps, FoundSteps
from perfd.aggregator.operations.steps_by_operations.operation_reports import is_whole
from perfd.aggregator.operations.steps_by_operations.operation_stream import (
    LONE_S,
    RECEIVE,
    Cycle,
    OperationStream,
)
from perfd.aggregator.operations.steps_by_operations.step_marks import StepMarks
from perfd.aggregator.operations.steps_by_operations.step_row_ends import (
    ALL_REDUCE,
    SILENT_NS,
    RowEnd,
    StepPace,
    is_partial,
    row_between,
    row_end,
    whole_step,
)
from perfd.analysis.data.job_data import Floats, OperationPace
from perfd.analysis.operations.step_boundaries import repeats_between
from perfd.model import CollectiveTimes, TrainingStep

_MOST_STREAMS = 256
"""Most communicators and operations that are searched per rank; no known job has as many."""
_LEAST_BYTES_RATIO = 0.001
"""Of the bytes that a rank moves: a stream that shows steps is part of its work, not a flag."""
_ROW_S = LONE_S
"""A row covers at least this long where it is unknown when operations began: windows of operations end in the
middle of a step, which costs each row up to half a step's accuracy."""
_LOOK_S = 1.0
"""Between searches for what repeats, before it is known."""
_GATHERING, _ENDING_STEPS = "AllGather", "ReduceScatter"
_REPEATS_AWAITED = 20
"""Of gathers, before these show steps although there are reductions, and of others before what a group hands
on does."""
_SHARDED = (_GATHERING, _ENDING_STEPS)
"""FSDP and ZeRO repeat these in each micro-batch; what is reduced once per step separates steps."""
HANDED_ON = ("Broadcast", RECEIVE)
"""Tensor and pipeline groups hand data on in each micro-batch. They may reduce a number in each one, too."""
_SCALAR_BYTES = 4096
"""The gradient norm is one number, or a few; overflow checks and similar reductions come with it."""
_FEWEST_SCALARS = 8
"""Reductions of a scalar: the rate of fewer is not trusted. Chosen."""
_WHOLE_RATIO = 0.05
"""How far from a whole number the micro-batches of a step may seem, besides one operation more or less."""
_MOST_MICRO_BATCHES = 64
"""Of one step; scalars that are rarer are those of evaluations, or losses to print. Chosen."""
_MOST_PASSES = 4
"""Of a step that does something else once, as contrastive losses do: no job evaluates each fourth step."""
_SLOWER = 1.5
"""Repeats per scalar above which these are not one per repeat."""
_NOTHING = FoundSteps()


class OperationSteps:
    """Steps by the operations of one rank; where operations do not repeat there are none.

    The stream with the largest operation that recurs sets the pace: in most jobs, the reduction of gradients.
    A repeat of its sizes is a step; with sharded parameters a step has as many repeats as there are between
    two all-reduces of a number, if there are such, and else a micro-batch counts as a step.
    """

    def __init__(self, marks: StepMarks | None = None, before: float = 0.0) -> None:
        self.rank: int | None = None  # Whose operations show steps.
        self._before = before  # Steps that another process of the rank made.
        self._reported_unix_ns = 0
        """When its newest report ended."""
        self._streams: dict[tuple[str, str, int | None], OperationStream] = {}
        """By communicator, operation and, of receives, the peer."""
        self._others = ConfirmingRanks()
        self._marks = marks or StepMarks()
        self._mark: RowEnd | None = None
        self._first: TrainingStep | None = None
        """A row that waits until the stream goes on: what repeats while a job starts ends soon."""
        self._looked_unix_ns = 0
        self._paced: StepPace | None = None
        """At the newest search."""
        self._exact: ExactSteps | None = None
        self._recounted = False
        """Whether each of the steps shown so far is only a part of one."""

    @property
    def pace(self) -> OperationPace | None:
        """What shows steps, and where the newest row ended; None before the first."""
        mark = self._mark
        if mark is None:
            return None
        return OperationPace(
            communicator=mark.stream.communicator,
            operation=mark.stream.operation,
            per_step=mark.per_step,
            row_end_sequence=mark.sequence,
            doubt=mark.doubt,
            exact=mark.exact,
            pauses=self._exact.pauses if mark.exact and self._exact is not None else None,
        )

    def settle(self) -> None:
        """The job's log counts the steps shown so far as they are."""
        if self._exact:
            self._exact.settle()

    def take_together(self, steps: int) -> None:
        """Count this many of the steps shown so far as one, as the job's log does.

        Layers of one size repeat within a step, and micro-batches may show nothing that ends one.
        """
        if self._mark is not None and self._mark.exact:
            self._take_together(self._mark.stream, steps)

    def _take_together(self, stream: OperationStream, repeats: int) -> None:
        if stream.take_together(repeats):
            self._recounted = self._recounted or self._mark is not None
            self._paced, self._looked_unix_ns = None, 0
            self._mark, self._exact = None, None

    def put(self, times: CollectiveTimes) -> FoundSteps:
        """Add what a rank did; returns rows of steps, with nothing but times, when some are complete."""
        if self.rank is None:
            self.rank, self._reported_unix_ns = times.rank, times.end_unix_ns
        sent = times.peer is not None and times.operation != RECEIVE
        if sent or not is_whole(times):
            return _NOTHING
        if times.rank != self.rank and times.end_unix_ns - self._reported_unix_ns >= SILENT_NS:
            self._go_on_with(times.rank)
        key = (times.communicator, times.operation, times.peer)
        stream = self._streams.get(key)
        if times.rank != self.rank:
            if stream is not None and stream.alike:
                self._others.put(times)
            return _NOTHING
        self._reported_unix_ns = max(self._reported_unix_ns, times.end_unix_ns)
        if stream is None:
            if len(self._streams) >= _MOST_STREAMS:
                return _NOTHING
            stream = self._streams[key] = OperationStream(
                times.communicator, times.operation, times.sequences[0] - 1, self._marks
            )
        stream.put(times)
        if stream.timed:
            self._search(times, stream)
        if not self._may_show(stream, times.end_unix_ns):
            return _NOTHING
        if stream.timed:
            return self._exact_rows(times.job, times.end_unix_ns, stream)
        row = self._row(times, stream)
        return _NOTHING if row is None else FoundSteps([row])

    def _search(self, times: CollectiveTimes, stream: OperationStream) -> None:
        """Look for what repeats, if it is time to, once a stream has more operations."""
        if times.operation != RECEIVE and max(times.sizes_bytes) <= _SCALAR_BYTES:
            self._marks.put_numbers(stream.newest_spans_us(len(times.sequences))[:1])
        since_look_s = (times.end_unix_ns - self._looked_unix_ns) / 1e9
        if since_look_s >= (_LOOK_S if self._paced is None else _ROW_S):
            self._paced = self._pace(times.end_unix_ns)
            self._join_layers(times.end_unix_ns)
            self._looked_unix_ns = times.end_unix_ns

    def _may_show(self, stream: OperationStream, now_unix_ns: int) -> bool:
        """Whether a stream may show steps: no other one does, or it may turn out to show them better."""
        mark, paced = self._mark, self._paced
        if mark is None or mark.stream is stream or now_unix_ns - mark.time_unix_ns >= SILENT_NS:
            return True
        return paced is not None and paced.stream is stream

    def end(self, job: str) -> FoundSteps:
        """What waited for more operations than the job had; it may go on all the same."""
        now_unix_ns = max((one.newest_unix_ns for one in self._streams.values()), default=0)
        paced = self._paced = self._pace(now_unix_ns)
        if paced is None:
            return _NOTHING
        if paced.stream.timed:
            return self._exact_rows(job, now_unix_ns, paced.stream, ended=True)
        row = self._last_row(job, paced)
        return _NOTHING if row is None else FoundSteps([row])

    def _go_on_with(self, rank: int) -> None:
        """Take another rank, since this one is silent: in a communicator, all have the same operations."""
        self.rank = rank
        self._streams = {key: stream for key, stream in self._streams.items() if key[2] is None}
        self._others.clear()

    def _exact_rows(
        self, job: str, now_unix_ns: int, stream: OperationStream, *, ended: bool = False
    ) -> FoundSteps:
        """Rows by when operations began."""
        paced = self._paced
        cycle = stream.repeat() if paced is not None and paced.stream is stream else None
        if paced is not None and cycle is not None and cycle.large != paced.cycle.large:
            # What repeats has changed; steps go on once it is known what does now.
            self._paced = paced = self._pace(now_unix_ns)
        if paced is None or cycle is None or paced.stream is not stream:
            return _NOTHING
        mark, anew = self._mark, False
        if self._exact is None or self._exact.stream is not stream:
            gone = mark is not None and now_unix_ns - mark.stream.newest_unix_ns >= SILENT_NS
            anew = mark is not None and mark.stream is not stream and not gone
            before = mark.step if mark is not None and gone else self._before
            self._exact = ExactSteps(stream, self._marks, int(before))
        gathers = None
        if stream.operation == _ENDING_STEPS:
            gathers = self._streams.get((stream.communicator, _GATHERING, None))
        others = [
            one
            for one in self._streams.values()
            if one is not stream and one.sizes.max(initial=0.0) > _SCALAR_BYTES
        ]
        found = self._exact.look(job, replace(paced, cycle=cycle), gathers, others, ended=ended)
        newest = self._exact.newest
        if anew or (self._recounted and found.rows):
            # What seemed to be steps was none, as while a job starts.
            found, self._recounted = replace(found, anew=True), False
        if newest is not None:
            self._mark = RowEnd(
                stream=stream,
                per_step=cycle.operations * (self._exact.repeats or 1),
                settled=self._exact.repeats is not None and paced.counted,
                doubt=self._exact.doubt,
                seen=newest.seen,
                sequence=stream.newest_sequence - (stream.seen - newest.seen),
                time_unix_ns=newest.end_us * 1000,
                step=newest.step,
                size_bytes=cycle.size_bytes,
                exact=True,
            )
        return found

    def _row(self, times: CollectiveTimes, stream: OperationStream) -> TrainingStep | None:
        mark, now_ns = self._mark, times.end_unix_ns
        if mark is not None and mark.stream is stream:
            return self._next_row(times, mark)
        if now_ns - self._looked_unix_ns < _LOOK_S * 1e9:
            return None
        self._looked_unix_ns = now_ns
        paced = self._pace(now_ns)
        if paced is not None:
            before = mark.step if mark is not None else self._before
            counted = paced.stream.repeated(paced.cycle) / (paced.repeats or 1)
            self._mark = row_end(paced, paced.stream.ended, before + counted)
            if mark is None and (began := paced.stream.before) is not None:
                since = self._mark.step - (self._mark.seen - began.seen) / self._mark.per_step
                self._first = row_between(times.job, row_end(paced, began, since), self._mark)
        return None

    def _next_row(self, times: CollectiveTimes, mark: RowEnd) -> TrainingStep | None:
        stream, end = mark.stream, mark.stream.ended
        if stream.before is not None and is_partial(mark, stream.before, end):
            end = stream.before
        step = mark.step + (end.seen - mark.seen) / mark.per_step
        if int(step) == int(mark.step):
            return None
        if end.unix_ns - mark.time_unix_ns < _ROW_S * 1e9:
            first, self._first = self._first, None
            return first
        paced = self._pace(times.end_unix_ns)
        if paced is None or paced.stream is not stream:
            # What repeats has changed; steps go on once it is known what does now.
            self._mark = None if paced is None else row_end(paced, paced.stream.ended, step)
            return None
        self._mark = row_end(paced, end, step)
        return row_between(times.job, mark, self._mark)

    def _last_row(self, job: str, paced: StepPace) -> TrainingStep | None:
        """The steps until the end, with the time of those in whole reports: it may be within the last one."""
        mark, before, end = self._mark, paced.stream.before, paced.stream.ended
        if mark is None or mark.stream is not paced.stream or before is None:
            return None
        step = mark.step + (end.seen - mark.seen) / mark.per_step
        # Within a step the share of its operations is not that of its bytes; at its end both are whole.
        by_bytes = paced.stream.repeated(paced.cycle) / (paced.repeats or 1)
        self._mark = row_end(paced, end, whole_step(by_bytes if abs(by_bytes - step) < 1 else step))
        row = row_between(job, mark, self._mark)
        each_s = mark.each_s(before)
        return row and replace(row, step_time_s=None if each_s is None else each_s * mark.per_step)

    def _pace(self, now_unix_ns: int) -> StepPace | None:
        """The stream that shows steps, and how many of its operations a step has."""
        streams = [one for one in self._streams.values() if now_unix_ns - one.newest_unix_ns < SILENT_NS]
        cycles = self._cycles(streams)
        if not cycles:
            return None
        current = (mark := self._mark) and mark.stream
        # Gathers of parameters are as large as the reductions of gradients that end a step.
        stream, cycle = max(
            cycles,
            key=lambda one: (one[1].size_bytes, one[0] is current, one[0].operation == _ENDING_STEPS),
        )
        # An evaluation or a gap may interrupt for a while what shows steps.
        if mark is not None and stream is not mark.stream and mark.outranks(cycle, now_unix_ns):
            return None
        if mark is None and self._awaits_better(stream, cycle, streams):
            return None
        if stream.total_bytes < _LEAST_BYTES_RATIO * sum(one.total_bytes for one in streams):
            # What moves the job's data has not repeated often enough yet.
            return None
        by_log = stream.repeats_of_step > 1
        if stream.operation in (*_SHARDED, *HANDED_ON) and not by_log:
            return self._sharded_pace(stream, cycle)
        counted = by_log or not (cycle.by_pauses or cycle.lone)
        # One of these that are alike is a repeat only if a number follows it.
        marked = stream.alike and counted and cycle.large == 1
        numbered = marked or any(1 / _SLOWER < ratio <= _SLOWER for ratio, _ in self._scalars(stream, cycle))
        return StepPace(stream, cycle, 1, counted=counted, by_log=by_log, numbered=numbered)

    def _cycles(self, streams: Sequence[OperationStream]) -> list[tuple[OperationStream, Cycle]]:
        """The streams that may show steps, each with what of it repeats."""
        known = [(one, cycle) for one in streams if (cycle := one.repeat())]
        large = [one for one in known if one[1].size_bytes > _SCALAR_BYTES]
        # What a pipeline hands on may be larger than what ends its steps.
        ending = [one for one in large if one[0].operation != RECEIVE] or large
        # What sizes show, pauses need not.
        by_sizes = [one for one in ending if not one[1].by_pauses]
        paced = self._paced and self._paced.stream
        return by_sizes or [one for one in ending if one[0] is paced or self._others.confirm(one[0])]

    def _awaits_better(
        self, stream: OperationStream, cycle: Cycle, streams: Sequence[OperationStream]
    ) -> bool:
        """Whether what ends steps has only not repeated often enough yet."""
        if stream.operation == _GATHERING:
            return self._may_end_steps(stream, cycle)
        return stream.operation in HANDED_ON and _may_show_better(streams)

    def _join_layers(self, now_unix_ns: int) -> None:
        """Take repeats together that are layers or passes, where other operations of the rank show that."""
        paced = self._paced
        if paced is None or paced.repeats != 1 or not paced.counted or paced.stream.repeats_of_step > 1:
            return
        operations = paced.stream.repeating(paced.cycle)
        if operations is None:
            return
        together = 1
        for one in self._streams.values():
            if one is paced.stream or one.sizes.max(initial=0.0) <= _SCALAR_BYTES:
                continue
            repeats = repeats_between(operations.start_us, one.newest_spans_us()[0], paced.cycle.large)
            if one.operation == RECEIVE or repeats <= _MOST_PASSES:
                together = max(together, repeats)
        if together > 1:
            self._take_together(paced.stream, together)
            self._paced = self._pace(now_unix_ns)

    def _may_end_steps(self, gathers: OperationStream, cycle: Cycle) -> bool:
        """Whether reductions that are as large may repeat soon, too."""
        return cycle.known < _REPEATS_AWAITED * cycle.large and any(
            one.operation == _ENDING_STEPS and one.sizes.max(initial=0.0) >= cycle.size_bytes
            for one in self._streams.values()
            if one is not gathers
        )

    def _sharded_pace(self, stream: OperationStream, cycle: Cycle) -> StepPace | None:
        """How many repeats a step has; None while that is not clear."""
        ratios = self._scalars(stream, cycle)
        slower = [one for one in ratios if one[0] > _SLOWER and round(one[0]) <= _MOST_MICRO_BATCHES]
        if not slower:
            once = stream.operation in _SHARDED and any(1 / _SLOWER < one <= _SLOWER for one, _ in ratios)
            return StepPace(stream, cycle, 1 if once else None)
        whole = [round(ratio) for ratio, count in slower if _is_whole(ratio, count)]
        return StepPace(stream, cycle, max(whole)) if whole else None

    def _scalars(self, stream: OperationStream, cycle: Cycle) -> list[tuple[float, int]]:
        """By communicator, how many repeats there are for a reduction of a number, and how many of these."""
        return [
            (stream.repeats_for_each(other, cycle) * other.group(), other.seen)
            for other in self._streams.values()
            if other.operation == ALL_REDUCE
            and other is not stream
            and other.seen >= _FEWEST_SCALARS
            and _are_scalars(other.sizes)
            # The optimizer's come at the pace of steps, those in longer breaks with evaluations or saves.
            and not stream.interrupted_by(other, cycle)
        ]


def _may_show_better(streams: Sequence[OperationStream]) -> bool:
    """Whether what ends steps, such as a reduction of gradients, has only not repeated often enough yet."""
    held = (one.sizes for one in streams if one.operation not in HANDED_ON)
    largest = ((sizes, float(sizes.max(initial=0.0))) for sizes in held)
    return any(size > _SCALAR_BYTES and (sizes == size).sum() < _REPEATS_AWAITED for sizes, size in largest)


def _are_scalars(sizes: Floats) -> bool:
    return bool(sizes[0] <= _SCALAR_BYTES and (sizes == sizes[0]).all())


def _is_whole(ratio: float, count: int) -> bool:
    return abs(ratio - round(ratio)) <= (_WHOLE_RATIO + 1 / count) * round(ratio)
