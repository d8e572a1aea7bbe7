"""One rank's operations of one kind on one communicator, and what of them repeats."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perfd.aggregator.operations.growable_arrays import NewestColumns
from perfd.aggregator.operations.steps_by_operations.lost_operations import with_lost
from perfd.aggregator.operations.steps_by_operations.operation_reports import (
    END,
    REPORTED,
    SIZE,
    START,
    ReportEnd,
    TimedOperations,
    columns_of,
    in_order,
    stride_of,
    thinned,
)
from perfd.aggregator.operations.steps_by_operations.step_marks import StepMarks
from perfd.analysis.data.job_data import Floats, Ints
from perfd.analysis.operations.pause_pattern import PausePattern, are_steady, pause_pattern
from perfd.analysis.operations.repeat_period import FEWEST_REPEATS, Repeat, repeat_period
from perfd.analysis.operations.step_boundaries import come_in_breaks, receives_of_step
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
"""The newest, which show whether a mark ends steps. Chosen."""
_MARKED_RATIO = 0.9
"""Share of that many single operations of one size that a scalar must follow, such as the gradient norm, if
each is a step."""
_SEARCH_NS = 3 * 10**9
"""Time between searches for repeating pauses, once a pattern is found and the buffer is half full: searches
of fewer operations are cheap, and the first steps depend on them."""
_STRIDED_REPORTS, _FINER_REPORTS = 3, 10
"""After so many reports in a row that leave out as many operations, up to so many that leave out fewer are
thinned: an agent near its limit leaves out some in one second and none in the next. Chosen."""
_MOST_SPARSE = 2
"""Reports in a row that leave out operations where those before left out none: so few are a moment in which
the agent was at its limit, and what repeats shows what they lack. Chosen."""
_FEWEST_COMPARED = 8
"""Operations of another stream, while both run, before repeats are counted for each of them. Chosen."""
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
    lone: bool = False
    """Whether all are of one size and evenly apart, and nothing else shows that each is a step."""


@dataclass(slots=True)
class OperationStream:
    """The newest operations of a stream."""

    communicator: str
    operation: str
    newest_sequence: int
    marks: StepMarks = field(default_factory=StepMarks)
    """Of the rank's steps."""
    newest: NewestColumns = field(default_factory=lambda: NewestColumns(5, _HELD_OPERATIONS))
    """Size in bytes, start, end and time in the queue in microseconds, NaN if unknown; whether reported."""
    durations: NewestColumns = field(default_factory=lambda: NewestColumns(1, _HELD_OPERATIONS))
    """Durations of receives in microseconds, since the newest gap in sequence numbers."""
    seen: int = 0
    """Operations since the first report, those that were not reported included."""
    seen_s: float = 0.0
    total_bytes: float = 0.0
    newest_unix_ns: int = 0
    before: ReportEnd | None = None
    """Where the report before the newest one ended."""
    alike: bool = False
    """Whether the operations that repeat were all of one size at the newest search."""
    in_breaks: bool = False
    """Whether its operations came in breaks of what shows steps, as an evaluation's do."""
    repeats_of_step: int = 1
    """How many repeats of its sizes are a step, by the job's log."""
    _numbered: bool = False
    """Whether marks of steps, too, showed at that search that each of these is one."""
    _whole: int = 0
    """Of the newest ones, those since the newest hole."""
    _stride: int = 1
    """Only one operation in this many is reported, as agents do at high rates."""
    _strided: int = 0
    """Reports in a row that were read with this stride."""
    _finer: int = 0
    """Of them, the newest in a row that left out fewer."""
    _sparse: int = 0
    """Of the newest reports in a row, those that left out operations evenly."""
    _group: int | None = None
    """How many of one size are a repeat, once that is known."""
    _pattern: PausePattern | None = None
    """Found in the newest operations, since the newest gap."""
    _searched_unix_ns: int = 0
    """Time of that search."""
    _unsearched: int = 0
    """Operations that came after it."""
    _places: Ints | None = None
    """Indices of operations that are not small; None until they are needed."""

    @property
    def sizes(self) -> Floats:
        """Sizes of the newest operations in bytes."""
        sizes: Floats = self.newest.held[SIZE]
        return sizes

    @property
    def full(self) -> bool:
        """Whether it holds as many operations as it can."""
        return len(self.sizes) == _HELD_OPERATIONS

    @property
    def ended(self) -> ReportEnd:
        """Where the newest report ended."""
        return ReportEnd(self.newest_unix_ns, self.seen, self.newest_sequence)

    @property
    def timed(self) -> bool:
        """Whether the newest operation has a start time."""
        return not np.isnan(self.newest.held[START, -1])

    def put(self, times: CollectiveTimes) -> None:
        """Add what the rank reported."""
        if self.newest_unix_ns:
            self.before = self.ended
        stride = stride_of(times)
        columns, sequences = in_order(columns_of(times), np.array(times.sequences))
        self._sparse = 0 if stride in (None, 1) else self._sparse + 1
        whole = self._with_lost(columns, sequences) if self._sparse <= _MOST_SPARSE else None
        if whole is not None:
            stride, columns = 1, whole
            sequences = np.arange(self.newest_sequence, sequences[-1]) + 1
            self.total_bytes += float(whole[SIZE, whole[REPORTED] == 0.0].sum())
        if stride is not None and stride < self._stride and self._reads_fewer(stride):
            columns, sequences = thinned(columns, sequences, self._stride)
            stride = self._stride
        else:
            self._finer = 0
        hole = stride is None or not len(sequences)
        if stride is not None and stride != self._stride:
            hole = self._change_stride(stride)
        hole = hole or sequences[0] != self.newest_sequence + self._stride
        if hole:
            large = self.sizes[self._large()]
            if len(large) and (large != large[0]).any():
                # The buffer no longer has the job's order.
                self.newest.clear()
        self._strided += 1
        self._whole = min(_HELD_OPERATIONS, (0 if hole else self._whole) + len(sequences))
        if self.operation == RECEIVE:
            if hole:
                self.durations.clear()
            self.durations.put(np.array([times.durations_ns], dtype=np.float64) / 1e3)
        self._pattern = None if hole else self._pattern
        self._unsearched += len(sequences)
        self.newest.put(columns)
        self._places = None
        self.total_bytes += times.total_bytes or 0.0
        if len(sequences):
            self.seen += int(sequences[-1]) - self.newest_sequence
            self.newest_sequence = int(sequences[-1])
        self.seen_s += (times.end_unix_ns - times.start_unix_ns) / 1e9
        self.newest_unix_ns = times.end_unix_ns

    def _with_lost(self, columns: Floats, sequences: Ints) -> Floats | None:
        """The columns of a report with those that it lacks, if what repeats shows them."""
        complete = not len(sequences) or sequences[-1] - self.newest_sequence == len(sequences)
        if complete or self._stride != 1 or not self._whole or self.operation == RECEIVE:
            return None
        return with_lost(self.newest.held[:, -self._whole :], self.newest_sequence, columns, sequences)

    def _reads_fewer(self, stride: int) -> bool:
        """Whether to leave out what a report with this smaller stride has more than those before it."""
        if self._stride % stride or self._strided < _STRIDED_REPORTS or self._finer >= _FINER_REPORTS:
            return False
        self._finer += 1
        return True

    def _change_stride(self, stride: int) -> bool:
        """From now on one in `stride` is reported; whether that leaves a hole."""
        group, odd = divmod((self._group or 0) * self._stride, stride)
        self._group = None if odd or not group else group
        before, self._stride, self._strided, self._finer = self._stride, stride, 0, 0
        if stride % before or not self._whole or self.operation == RECEIVE:
            return True
        held = self.newest.held[:, -self._whole :]
        numbers = self.newest_sequence - before * np.arange(held.shape[1] - 1, -1, -1)
        kept, numbers = thinned(held.copy(), numbers, stride)
        self.newest.clear()
        self.newest.put(kept)
        self._whole, self._pattern, self._places = len(numbers), None, None
        if not len(numbers):
            return True
        self.seen -= self.newest_sequence - int(numbers[-1])
        self.newest_sequence = int(numbers[-1])
        return False

    @property
    def per_s(self) -> float:
        """Operations a second."""
        return self.seen / self.seen_s if self.seen_s > 0 else 0.0

    def repeats_for_each(self, other: OperationStream, cycle: Cycle) -> float:
        """How many of its repeats there are for one operation of another stream, which has some."""
        held = self.newest.held
        mine_us, theirs_us = held[START, self._large()[-cycle.known :]], other.newest_spans_us()[0]
        overall = self.per_s / cycle.operations / other.per_s
        if np.isnan(mine_us).any() or not len(theirs_us):
            return overall
        # One of them may have begun while the job started, long before its steps.
        since_us, until_us = max(mine_us[0], theirs_us[0]), min(mine_us[-1], theirs_us[-1])
        mine, theirs = (
            np.count_nonzero((starts_us >= since_us) & (starts_us <= until_us))
            for starts_us in (mine_us, theirs_us)
        )
        if theirs < _FEWEST_COMPARED:
            return overall
        return float(mine / cycle.large / (theirs * other._stride))

    def interrupted_by(self, other: OperationStream, cycle: Cycle) -> bool:
        """Whether another's operations come in breaks longer than a repeat, or did when they came last."""
        if (mine := self.repeating(cycle)) is not None:
            starts_us = other.newest_spans_us()[0]
            shown = come_in_breaks(mine.start_us, mine.end_us, starts_us, cycle.large)
            other.in_breaks = other.in_breaks if shown is None else shown
        return other.in_breaks

    def repeat(self) -> Cycle | None:
        """What of it repeats; None without that."""
        places = self._large()
        large = self.sizes[places]
        found = repeat_period(large)
        if found is None or found.length < _FEWEST_REPEATS * found.period:
            return None
        self.alike = self.operation != RECEIVE and found.period == 1
        if self.operation == RECEIVE:
            found = self._received(found)
        elif self.alike:
            found = self._of_one_size(places, found)
        if found is None:
            return None
        period = found.period * self.repeats_of_step
        if found.length < FEWEST_REPEATS * period:
            return None
        return Cycle(
            size_bytes=int(large[-found.period :].max()),
            operations=period * len(self.sizes) / len(large) * self._stride,
            large=period,
            known=found.length,
            moved_bytes=int(large[-period:].sum()) * self._stride,
            by_pauses=self.alike and found.period > 1,
            lone=self.alike and found.period == 1 and not self._numbered,
        )

    def take_together(self, repeats: int) -> bool:
        """Count this many repeats as a step; False where too few of its operations are held."""
        cycle = self.repeat()
        if cycle is None or cycle.known < FEWEST_REPEATS * cycle.large * repeats:
            return False
        self.repeats_of_step *= repeats
        return True

    def group(self) -> int:
        """How many operations come together, by the pauses between them; 1 if they show no groups."""
        starts_us, ends_us = self.newest.held[[START, END]][:, -self._whole :]
        shown = None if np.isnan(starts_us).any() else pause_pattern(starts_us, ends_us, sampled=True)
        return 1 if shown is None else shown.period

    def ends_as(self, other: OperationStream) -> bool:
        """Whether a stream of one size repeats as that of another rank, and with the same operations."""
        alike = other.repeat() is not None and self._group == other._group
        return alike and not self._ends().isdisjoint(other._ends())

    def _ends(self) -> set[int]:
        """Sequence numbers of the last operations of all groups: one rank may report later than another."""
        pattern = self._pattern
        if pattern is None:
            return set()
        large = self._large()
        ends = slice(len(large) - 1 - pattern.after_last, None, -pattern.period)
        places = large[ends][: pattern.length // pattern.period]
        sequences = self.newest_sequence - (len(self.sizes) - 1 - places) * self._stride
        return set(sequences.tolist())

    def _of_one_size(self, places: Ints, found: Repeat) -> Repeat | None:
        """What operations of one size repeat: groups of them by their pauses, or each one alone."""
        whole = places[places >= len(self.sizes) - self._whole]
        starts_us, ends_us = self.newest.held[[[START], [END]], whole]
        exact, marked = bool(len(whole)) and not np.isnan(starts_us).any(), False
        if exact:
            marked = self._marked(places) or self.marks.show_steps(starts_us, self.newest_unix_ns / 1e3)
            self._numbered = marked
            self._pattern = shown = None if marked else self._pauses(places, starts_us, ends_us)
            known = self._group or 0
            if shown is not None and (known < 2 or shown.period % known):
                # Of what has repeated, each so many may take longer for a while.
                self._group = known = shown.period
            if known > 1:
                length = len(whole) if shown is None else shown.length
                return Repeat(known, length // known * known) if length >= 2 * known else None
        large_per_s = self.per_s * len(places) / len(self.sizes)
        if (large_per_s > _MOST_LONE_PER_S and not marked) or self.seen_s < LONE_S:
            return None
        if exact and self._group is None and not marked and not are_steady(starts_us):
            return None
        self._group = 1
        return found

    def _pauses(self, places: Ints, starts_us: Floats, ends_us: Floats) -> PausePattern | None:
        """The pattern of pauses between operations; that of the last search if it is recent."""
        before = self._pattern
        few = len(starts_us) < _HELD_OPERATIONS // 2
        more = int(np.count_nonzero(places >= len(self.sizes) - self._unsearched))
        self._unsearched = 0
        if before is None or few or self.newest_unix_ns - self._searched_unix_ns >= _SEARCH_NS:
            self._searched_unix_ns = self.newest_unix_ns
            return pause_pattern(starts_us, ends_us, sampled=self._stride > 1)
        length = min(len(starts_us), before.length + more)
        return PausePattern(before.period, length, before.after_last + more)

    def _marked(self, places: Ints) -> bool:
        """Whether a scalar follows each large operation."""
        followed = np.diff(places[-_MARKED_OPERATIONS:]) > 1
        return bool(len(followed) and followed.sum() >= _MARKED_RATIO * len(followed))

    def _received(self, found: Repeat) -> Repeat | None:
        """What receives of one size repeat, by how long they take."""
        if found.period != 1 or self.seen_s < LONE_S:
            return None
        durations_us = self.durations.held[0]
        count = receives_of_step(durations_us)
        if count is None or self.per_s / count > _MOST_LONE_PER_S:
            return None
        return Repeat(count, min(found.length, len(durations_us)))

    def repeated(self, cycle: Cycle) -> float:
        """How often it has repeated this, by what it moved: a first step may have other buckets."""
        share = float(self.sizes[self._large()].sum() / self.sizes.sum())
        return self.total_bytes * share / cycle.moved_bytes

    def repeating(self, cycle: Cycle) -> TimedOperations | None:
        """The large operations that repeat; None where it is unknown when one of them ran."""
        places = self._large()[-cycle.known :]
        held = self.newest.held
        _, start_us, end_us, queued_us, reported = held[:, places]
        if np.isnan(start_us).any():
            return None
        after = held.shape[1] - 1 - places
        since = held[SIZE].sum() - held[SIZE].cumsum()[places]
        return TimedOperations(
            start_us=start_us,
            end_us=end_us,
            queued_us=queued_us,
            seen=self.seen - after * self._stride,
            moved_bytes=self.total_bytes - since * self._stride,
            reported=reported == 1.0,
        )

    def newest_spans_us(self, most: int = _HELD_OPERATIONS) -> Floats:
        """When the newest operations began and ended, (2, n), since the last one whose start is unknown."""
        spans_us = self.newest.held[START : END + 1, -most:]
        unknown = np.flatnonzero(np.isnan(spans_us[0]))
        return spans_us[:, unknown[-1] + 1 :] if len(unknown) else spans_us

    def _large(self) -> Ints:
        """Places of the operations that are not small."""
        if self._places is None:
            sizes = self.sizes
            ordered = np.sort(sizes)
            recurring = ordered[1:][ordered[1:] == ordered[:-1]]
            largest = recurring[-1] if len(recurring) else 0.0
            self._places = np.flatnonzero(sizes >= largest * _SMALL_RATIO)
        return self._places
