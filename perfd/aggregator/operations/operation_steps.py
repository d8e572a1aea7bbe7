"""Steps of a job whose log shows none, by its NCCL operations: training repeats itself."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from perfd.analysis.data.job_data import OperationPace
from perfd.analysis.operations.repeat_period import repeat_period
from perfd.model import CollectiveTimes, TrainingStep

_HELD_OPERATIONS = 2048
"""Per stream: ten steps of a model of 200 layers."""
_MOST_STREAMS = 256
_FEWEST_REPEATS = 10
"""Before a step is reported."""
_SMALL_RATIO = 1 / 64
"""Operations below this part of a stream's largest are numbers (a norm, a flag), whose order varies."""
_MOST_LONE_PER_S = 20.0
"""A stream of one size may have one operation per step up to this rate; tensor parallelism has more."""
_LEAST_BYTES_RATIO = 0.001
"""Of the bytes that a rank moves: a stream that shows steps is part of its work, not a flag."""
_ROW_S = 3.0
"""A row covers at least this long: windows of operations end in the middle of a step, which costs each row up
to half a step's accuracy."""
_LOOK_S = 1.0
"""Between looks for what repeats, before it is known."""
_SHARDED = ("AllGather", "ReduceScatter")
"""FSDP and ZeRO repeat these in each micro-batch; what is reduced once per step separates steps."""
_SCALAR_BYTES = 4096
"""The norm of gradients is a number, or a few."""
_FEWEST_SCALARS = 8
_WHOLE_RATIO = 0.05
"""How far from a whole number the micro-batches of a step may seem, besides one operation more or less."""
_MOST_MICRO_BATCHES = 64
_SLOWER = 1.5
"""Repeats per scalar above which these are not one per repeat."""
_SILENT_NS = 30 * 10**9
"""A stream that sets the pace and says nothing for so long is gone, as after a restart."""


@dataclass(slots=True)
class _Stream:
    """One rank's operations of one kind on one communicator."""

    communicator: str
    operation: str
    newest_sequence: int
    sizes: deque[int] = field(default_factory=lambda: deque(maxlen=_HELD_OPERATIONS))
    seen: int = 0
    """Operations since the first report, those that were not reported included."""
    seen_s: float = 0.0
    total_bytes: float = 0.0
    newest_unix_ns: int = 0
    before: tuple[int, int] | None = None
    """When the report before the newest one ended, and how many had been seen by then."""

    def put(self, times: CollectiveTimes) -> None:
        if self.newest_unix_ns:
            self.before = self.newest_unix_ns, self.seen
        hole = times.sequences[0] != self.newest_sequence + 1 or len(times.sequences) != times.count
        if hole and len(set(self._large())) > 1:
            # The order of what is held is not that of the job any more.
            self.sizes.clear()
        self.sizes.extend(times.sizes_bytes)
        self.total_bytes += times.total_bytes or 0.0
        self.seen += times.sequences[-1] - self.newest_sequence
        self.seen_s += (times.end_unix_ns - times.start_unix_ns) / 1e9
        self.newest_sequence = times.sequences[-1]
        self.newest_unix_ns = times.end_unix_ns

    @property
    def per_s(self) -> float:
        return self.seen / self.seen_s if self.seen_s > 0 else 0.0

    def repeat(self) -> _Cycle | None:
        """What of it repeats; None without that."""
        large = self._large()
        found = repeat_period(large)
        if found is None or found.length < _FEWEST_REPEATS * found.period:
            return None
        if found.period == 1 and (self.per_s > _MOST_LONE_PER_S or self.seen_s < _ROW_S):
            return None
        return _Cycle(
            size_bytes=max(large[-found.period :]),
            operations=found.period * len(self.sizes) / len(large),
        )

    def _large(self) -> list[int]:
        largest = max((size for size, count in Counter(self.sizes).items() if count > 1), default=0)
        return [size for size in self.sizes if size >= largest * _SMALL_RATIO]


@dataclass(frozen=True, slots=True)
class _Cycle:
    """What a stream repeats."""

    size_bytes: int
    """Of its largest operation."""
    operations: float
    """Per repeat, small ones included."""


@dataclass(frozen=True, slots=True)
class _Pace:
    """A stream that shows steps."""

    stream: _Stream
    per_step: float
    certain: bool


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where the newest row ended."""

    stream: _Stream
    per_step: float
    """Operations of the stream."""
    certain: bool
    """Whether a step is surely not a micro-batch."""
    seen: int
    sequence: int
    time_unix_ns: int
    step: float


class OperationSteps:
    """Steps by the operations of one rank; where operations do not repeat there are none.

    The stream with the largest operation that recurs sets the pace: in most jobs, the reduction of gradients.
    A repeat of its sizes is a step; with sharded parameters a step has as many repeats as there are between
    two all-reduces of a number, if there are such, and else a micro-batch counts as a step.
    """

    def __init__(self) -> None:
        self._rank: int | None = None
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._mark: _Mark | None = None
        self._first: TrainingStep | None = None
        """A row that waits until the stream goes on: what repeats while a job starts ends soon."""
        self._looked_unix_ns = 0

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
            certain=mark.certain,
        )

    def put(self, times: CollectiveTimes) -> TrainingStep | None:
        """Add what a rank did; returns a row of steps, with nothing but times, when one is complete."""
        if self._rank is None:
            self._rank = times.rank
        if times.rank != self._rank or times.peer is not None or not times.sequences or not times.sizes_bytes:
            return None
        key = (times.communicator, times.operation)
        stream = self._streams.get(key)
        if stream is None:
            if len(self._streams) >= _MOST_STREAMS:
                return None
            stream = self._streams[key] = _Stream(*key, times.sequences[0] - 1)
        stream.put(times)
        return self._row(times, stream)

    def _row(self, times: CollectiveTimes, stream: _Stream) -> TrainingStep | None:
        mark = self._mark
        if mark is not None and mark.stream is stream:
            return self._next_row(times, mark)
        if mark is not None and times.end_unix_ns - mark.time_unix_ns < _SILENT_NS:
            return None
        if times.end_unix_ns - self._looked_unix_ns < _LOOK_S * 1e9:
            return None
        self._looked_unix_ns = times.end_unix_ns
        paced = self._pace(times.end_unix_ns)
        if paced is None:
            return None
        counted = paced.stream.seen / paced.per_step
        self._mark = _marked(paced, counted + (mark.step if mark is not None else 0.0))
        if mark is None and self._mark.stream.before is not None:
            began_ns, seen = self._mark.stream.before
            since_step = self._mark.step - (self._mark.seen - seen) / self._mark.per_step
            self._first = _as_row(times.job, self._mark, since_step, began_ns)
        return None

    def _next_row(self, times: CollectiveTimes, mark: _Mark) -> TrainingStep | None:
        stream, now_ns = mark.stream, times.end_unix_ns
        step = mark.step + (stream.seen - mark.seen) / mark.per_step
        if int(step) == int(mark.step):
            return None
        if now_ns - mark.time_unix_ns < _ROW_S * 1e9:
            first, self._first = self._first, None
            return first
        paced = self._pace(now_ns)
        if paced is None or paced.stream is not stream:
            # What repeats has changed; steps go on once it is known what does now.
            self._mark = None if paced is None else _marked(paced, step)
            return None
        self._mark = _marked(paced, step)
        return _as_row(times.job, self._mark, mark.step, mark.time_unix_ns)

    def _pace(self, now_unix_ns: int) -> _Pace | None:
        """The stream that shows steps, and how many of its operations a step has."""
        streams = [one for one in self._streams.values() if now_unix_ns - one.newest_unix_ns < _SILENT_NS]
        cycles = [(stream, cycle) for stream in streams if (cycle := stream.repeat())]
        if not cycles:
            return None
        current = self._mark.stream if self._mark else None
        stream, cycle = max(cycles, key=lambda one: (one[1].size_bytes, one[0] is current))
        if stream.total_bytes < _LEAST_BYTES_RATIO * sum(one.total_bytes for one in streams):
            # What moves the job's data has not repeated often enough yet.
            return None
        if stream.operation not in _SHARDED:
            return _Pace(stream, cycle.operations, certain=True)
        return self._sharded_pace(stream, cycle)

    def _sharded_pace(self, stream: _Stream, cycle: _Cycle) -> _Pace | None:
        """How many repeats a step has; None while that is not clear."""
        ratios = [
            (stream.per_s / cycle.operations / other.per_s, other.seen)
            for other in self._streams.values()
            if other.operation == "AllReduce" and other.seen >= _FEWEST_SCALARS and _are_scalars(other.sizes)
        ]
        slower = [(ratio, count) for ratio, count in ratios if ratio > _SLOWER]
        if not slower:
            once = any(ratio > 1 / _SLOWER for ratio, _ in ratios)
            return _Pace(stream, cycle.operations, certain=once)
        whole = [round(ratio) for ratio, count in slower if _is_whole(ratio, count)]
        return _Pace(stream, cycle.operations * max(whole), certain=True) if whole else None


def _marked(pace: _Pace, step: float) -> _Mark:
    """A row ends with the stream's newest report, at this step."""
    stream = pace.stream
    return _Mark(
        stream=stream,
        per_step=pace.per_step,
        certain=pace.certain,
        seen=stream.seen,
        sequence=stream.newest_sequence,
        time_unix_ns=stream.newest_unix_ns,
        step=step,
    )


def _as_row(job: str, mark: _Mark, since_step: float, since_unix_ns: int) -> TrainingStep | None:
    covered = int(mark.step) - int(since_step)
    if covered <= 0:
        return None
    return TrainingStep(
        job=job,
        step=int(mark.step),
        time_unix_ns=mark.time_unix_ns,
        step_time_s=(mark.time_unix_ns - since_unix_ns) / 1e9 / (mark.step - since_step),
        steps_covered=covered,
    )


def _are_scalars(sizes: Sequence[int] | deque[int]) -> bool:
    return len(set(sizes)) == 1 and sizes[0] <= _SCALAR_BYTES


def _is_whole(ratio: float, count: int) -> bool:
    nearest = round(ratio)
    return nearest <= _MOST_MICRO_BATCHES and abs(ratio - nearest) <= (_WHOLE_RATIO + 1 / count) * nearest
