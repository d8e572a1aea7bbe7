"""One rank's operations of one kind on one communicator, and what of them repeats."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice, pairwise, takewhile

import numpy as np

from perfd.analysis.data.job_data import Floats
from perfd.analysis.operations.pause_pattern import PausePattern, are_numbered, are_steady, pause_pattern
from perfd.analysis.operations.repeat_period import Repeat, repeat_period
from perfd.analysis.operations.step_boundaries import OperationSpan, receives_of_step
from perfd.model import CollectiveTimes

_HELD_OPERATIONS = 2048
"""Per stream: ten steps of a model of 200 layers."""
_FEWEST_REPEATS = 10
"""Before a step is reported."""
_SMALL_RATIO = 1 / 64
"""Operations below this part of a stream's largest are numbers (a norm, a flag), whose order varies."""
_MOST_LONE_PER_S = 20.0
"""A stream of one size may have one operation per step up to this rate; tensor parallelism has more."""
LONE_S = 3.0
"""How long a stream of one size must have been seen."""
_MARKED_OPERATIONS = 64
_MARKED_RATIO = 0.9
"""Share of that many single operations of one size that a scalar must follow, such as the gradient norm, if
each is a step."""
_FEWEST_SAMPLED = 16
"""Operations of a report, whose sequence numbers must be equally far apart."""
RECEIVE = "Recv"


@dataclass(frozen=True, slots=True)
class Cycle:
    """What a stream repeats."""

    size_bytes: int
    """Of its largest operation."""
    operations: float
    """Per repeat, small ones included."""
    large: int
    """Per repeat, without small ones."""
    known: int
    """Of the newest large ones, those that repeat so."""
    moved_bytes: int
    """Per repeat."""
    by_pauses: bool = False
    """Whether all are of one size, so that only the pauses between them show what repeats."""


@dataclass(frozen=True, slots=True)
class TimedOperation:
    """A large operation, and what of its stream was seen by its end."""

    span: OperationSpan
    seen: int
    """Operations."""
    moved_bytes: float


@dataclass(slots=True)
class OperationStream:
    """The newest operations of a stream."""

    communicator: str
    operation: str
    newest_sequence: int
    numbers_us: Sequence[float] = ()
    """When the rank's newest reductions of a scalar began, on any communicator."""
    sizes: deque[int] = field(default_factory=lambda: deque(maxlen=_HELD_OPERATIONS))
    spans: deque[OperationSpan | None] = field(default_factory=lambda: deque(maxlen=_HELD_OPERATIONS))
    """When each ran; None where that is unknown."""
    durations_us: deque[float] = field(default_factory=lambda: deque(maxlen=_HELD_OPERATIONS))
    """Of receives, since the newest hole."""
    seen: int = 0
    """Operations since the first report, those that were not reported included."""
    seen_s: float = 0.0
    total_bytes: float = 0.0
    newest_unix_ns: int = 0
    before: tuple[int, int] | None = None
    """When the report before the newest one ended, and how many had been seen by then."""
    alike: bool = False
    """Whether the operations that repeat were all of one size at the newest search."""
    _whole: int = 0
    """Of the newest ones, those since the newest hole."""
    _stride: int = 1
    """Only one operation in this many is reported, as agents do at high rates."""
    _group: int | None = None
    """How many of one size are a repeat, once that is known."""
    _pattern: PausePattern | None = None
    """At the newest search."""

    def put(self, times: CollectiveTimes) -> None:
        """Add what the rank reported."""
        if self.newest_unix_ns:
            self.before = self.newest_unix_ns, self.seen
        stride = _stride(times)
        hole = stride is None or times.sequences[0] != self.newest_sequence + stride
        if stride is not None and stride != self._stride:
            group, odd = divmod((self._group or 0) * self._stride, stride)
            self._group = None if odd or not group else group
            self._stride, hole = stride, True
        if hole and len({self.sizes[place] for place in self._large()}) > 1:
            # The order of what is held is not that of the job any more.
            self.sizes.clear()
            self.spans.clear()
        self._whole = min(_HELD_OPERATIONS, (0 if hole else self._whole) + len(times.sequences))
        if self.operation == RECEIVE:
            if hole:
                self.durations_us.clear()
            self.durations_us.extend(duration / 1e3 for duration in times.durations_ns)
        self.sizes.extend(times.sizes_bytes)
        self.spans.extend(_spans(times))
        self.total_bytes += times.total_bytes or 0.0
        self.seen += times.sequences[-1] - self.newest_sequence
        self.seen_s += (times.end_unix_ns - times.start_unix_ns) / 1e9
        self.newest_sequence = times.sequences[-1]
        self.newest_unix_ns = times.end_unix_ns

    @property
    def per_s(self) -> float:
        """Operations a second."""
        return self.seen / self.seen_s if self.seen_s > 0 else 0.0

    def repeat(self) -> Cycle | None:
        """What of it repeats; None without that."""
        places = self._large()
        large = [self.sizes[place] for place in places]
        found = repeat_period(large)
        if found is None or found.length < _FEWEST_REPEATS * found.period:
            return None
        if self.operation == RECEIVE:
            found = self._received(found)
            if found is None:
                return None
        else:
            self.alike = found.period == 1
            if self.alike:
                found = self._of_one_size(places, found)
                if found is None:
                    return None
        return Cycle(
            size_bytes=max(large[-found.period :]),
            operations=found.period * len(self.sizes) / len(large) * self._stride,
            large=found.period,
            known=found.length,
            moved_bytes=sum(large[-found.period :]) * self._stride,
            by_pauses=self.alike and found.period > 1,
        )

    def group(self) -> int:
        """How many operations come together, by the pauses between them; 1 if they show no groups."""
        spans = [span for span in list(self.spans)[len(self.spans) - self._whole :] if span is not None]
        starts_us = np.array([span.start_us for span in spans], dtype=np.float64)
        ends_us = np.array([span.end_us for span in spans], dtype=np.float64)
        shown = pause_pattern(starts_us, ends_us, sampled=True) if len(spans) == self._whole else None
        return 1 if shown is None else shown.period

    def ends_as(self, other: OperationStream) -> bool:
        """Whether a stream of one size repeats as that of another rank, and with the same operations."""
        if other.repeat() is None or self._group != other._group:
            return False
        return not self._ends().isdisjoint(other._ends())

    def _ends(self) -> set[int]:
        """Sequence numbers of the last operations of all groups: one rank may report later than another."""
        pattern = self._pattern
        if pattern is None:
            return set()
        large = self._large()
        ends = slice(len(large) - 1 - pattern.after_last, None, -pattern.period)
        places = large[ends][: pattern.length // pattern.period]
        return {self.newest_sequence - (len(self.sizes) - 1 - place) * self._stride for place in places}

    def _of_one_size(self, places: list[int], found: Repeat) -> Repeat | None:
        """What operations of one size repeat: groups of them by their pauses, or each one alone."""
        spans = [self.spans[place] for place in places if place >= len(self.sizes) - self._whole]
        timed = [span for span in spans if span is not None]
        exact, marked = bool(timed) and len(timed) == len(spans), False
        if exact:
            starts_us = np.array([span.start_us for span in timed], dtype=np.float64)
            ends_us = np.array([span.end_us for span in timed], dtype=np.float64)
            marked = self._marked(places) or are_numbered(starts_us, np.array(self.numbers_us))
            self._pattern = shown = (
                None if marked else pause_pattern(starts_us, ends_us, sampled=self._stride > 1)
            )
            known = self._group or 0
            if shown is not None and (known < 2 or shown.period % known):
                # Of what has repeated, each so many may take longer for a while.
                self._group = known = shown.period
            if known > 1:
                length = len(timed) if shown is None else shown.length
                return Repeat(known, length // known * known) if length >= 2 * known else None
        large_per_s = self.per_s * len(places) / len(self.sizes)
        if (large_per_s > _MOST_LONE_PER_S and not marked) or self.seen_s < LONE_S:
            return None
        if exact and self._group is None and not marked and not are_steady(starts_us):
            return None
        self._group = 1
        return found

    def _marked(self, places: list[int]) -> bool:
        """Whether a scalar follows each large operation."""
        followed = [after - before > 1 for before, after in pairwise(places[-_MARKED_OPERATIONS:])]
        return bool(followed) and sum(followed) >= _MARKED_RATIO * len(followed)

    def _received(self, found: Repeat) -> Repeat | None:
        """What receives of one size repeat, by how long they take."""
        if found.period != 1 or self.seen_s < LONE_S:
            return None
        count = receives_of_step(np.array(self.durations_us))
        if count is None or self.per_s / count > _MOST_LONE_PER_S:
            return None
        return Repeat(count, min(found.length, len(self.durations_us)))

    def repeating(self, cycle: Cycle) -> list[TimedOperation] | None:
        """The large operations that repeat; None where it is unknown when one of them ran."""
        stride, newest = self._stride, len(self.sizes) - 1
        since = list(accumulate(reversed(self.sizes), initial=0))
        found: list[TimedOperation] = []
        for place in self._large()[-cycle.known :]:
            span = self.spans[place]
            if span is None:
                return None
            moved = self.total_bytes - since[newest - place] * stride
            found.append(TimedOperation(span, self.seen - (newest - place) * stride, moved))
        return found

    def newest_starts_us(self, most: int = _HELD_OPERATIONS) -> Floats:
        """When the newest operations began, since the last one whose start is unknown."""
        known = list(takewhile(lambda span: span is not None, islice(reversed(self.spans), most)))
        return np.array([span.start_us for span in reversed(known) if span is not None], dtype=np.float64)

    def _large(self) -> list[int]:
        """Places of the operations that are not small."""
        sizes = list(self.sizes)
        largest = max((size for size, count in Counter(sizes).items() if count > 1), default=0)
        return [place for place, size in enumerate(sizes) if size >= largest * _SMALL_RATIO]


def _stride(times: CollectiveTimes) -> int | None:
    """One in how many operations is reported; None if that varies."""
    sequences = times.sequences
    if len(sequences) == times.count:
        return 1
    # Operations that share a kernel leave gaps, too; a few of these may be even by chance.
    if len(sequences) < _FEWEST_SAMPLED:
        return None
    stride = sequences[1] - sequences[0]
    evenly = stride > 1 and all(after - before == stride for before, after in pairwise(sequences))
    return stride if evenly else None


def _spans(times: CollectiveTimes) -> list[OperationSpan | None]:
    count = len(times.sequences)
    columns = (times.durations_ns, times.start_increments_us, times.queued_us)
    if any(len(column) != count for column in columns):
        return [None] * count
    starts_us = accumulate(times.start_increments_us, initial=times.start_unix_ns // 1000)
    next(starts_us)
    return [
        OperationSpan(start_us=start, end_us=start + duration // 1000, queued_us=queued)
        for start, duration, queued in zip(starts_us, times.durations_ns, times.queued_us, strict=True)
    ]
