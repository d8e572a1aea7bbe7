"""Recent samples of many series, in memory, for rules.

A store keeps only what its rules read, and each series only as long as the longest range
over it. Staleness is that of Prometheus: a series that its source no longer sends ends at
that time, and any other is valid for five minutes after its last sample.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.rules.label_matchers import MatcherSet

Columns: TypeAlias = slice | NDArray[np.intp]
Block: TypeAlias = NDArray[np.float64]
Times: TypeAlias = NDArray[np.int64]

_STALE_BITS = 0x7FF8_0000_0000_57A1
_GAP_BITS = 0x7FF8_0000_0000_6A70
"""NaNs with payloads of perfd's own: the end of a series, and an instant without a sample."""

# Two NaNs that no arithmetic makes, so that NaN itself can be a value, as in Prometheus.
STALE = np.array([_STALE_BITS], dtype=np.int64).view(np.float64)[0]
"""The series ended at this instant."""
GAP = np.array([_GAP_BITS], dtype=np.int64).view(np.float64)[0]
"""The series has no sample at this instant, and its last one may still be good."""
LOOKBACK_MS = 5 * 60 * 1000
"""How long a sample is valid; the default of Prometheus (`--query.lookback-delta`)."""

FRAMES = "frames"
"""The default source in `SeriesStore.append`."""

_UNREAD = -1
"""The horizon of a series that no rule reads."""


def to_ms(time_s: float) -> int:
    """A time or duration in the milliseconds that Prometheus counts in."""
    return round(time_s * 1000)


def is_value(block: Block) -> NDArray[np.bool_]:
    """Where a block holds samples, NaN samples too, and not the end of a series or a gap."""
    present: NDArray[np.bool_] = ~np.isnan(block)
    if not present.all():
        bits = block.view(np.int64)
        present = (bits != _STALE_BITS) & (bits != _GAP_BITS)
    return present


def _gaps(values: Block) -> NDArray[np.intp]:
    gaps: NDArray[np.bool_] = values.view(np.int64) == _GAP_BITS
    return gaps.nonzero()[0]


class SampleMatrix:
    """Samples of series that share their times: rows are instants, columns are series.

    Rows older than its horizon are forgotten, except the newest row; None: it keeps all.
    """

    def __init__(self, horizon_ms: int | None) -> None:
        self.keys: list[SeriesKey] = []
        self.index: dict[SeriesKey, int] = {}
        self.names: dict[str, list[SeriesKey]] = {}
        self._horizon_ms = horizon_ms
        self._times: Times = np.zeros(2, dtype=np.int64)
        self._values: Block = np.full((2, 0), GAP)
        self._start = 0
        self._end = 0

    def add(self, key: SeriesKey) -> int:
        """The column of a new series."""
        column = len(self.keys)
        self.keys.append(key)
        self.index[key] = column
        self.names.setdefault(key.name, []).append(key)
        capacity = self._values.shape[1]
        if column == capacity:
            wider = np.full((len(self._times), max(8, 2 * capacity)), GAP)
            wider[:, :capacity] = self._values
            self._values = wider
        return column

    def new_row(self, time_ms: int, fill: float | None) -> Block:
        """The row of an instant, to be written; filled with `fill`, or left as it is for None.

        Rows at later instants are forgotten: time went back.
        """
        end = self._start + int(np.searchsorted(self._times[self._start : self._end], time_ms))
        again = end < self._end and self._times[end] == time_ms
        if end == len(self._times):
            end = self._make_room()
        self._times[end] = time_ms
        self._end = end + 1
        if self._horizon_ms is not None:
            while self._times[self._start] < time_ms - self._horizon_ms:
                self._start += 1
        row: Block = self._values[end, : len(self.keys)]
        if fill is not None:
            row[:] = fill
        elif not again:
            self._values[end] = GAP
        return row

    def at(self, time_ms: int, lookback_ms: int, columns: Columns) -> tuple[Block, NDArray[np.bool_], Times]:
        """The newest value of each series at an instant, whether there is one, and its time."""
        last = self._last(time_ms)
        if last < self._start or self._times[last] < time_ms - lookback_ms:
            return self._nothing(columns)
        values: Block = self._values[last, columns]
        times: Times = self._times[last : last + 1].repeat(len(values))
        if len(_gaps(values)):
            values = values.copy()
            self._fill_gaps(values, times, last, time_ms - lookback_ms, columns)
        bits = values.view(np.int64)
        return values, (bits != _STALE_BITS) & (bits != _GAP_BITS), times

    def window(self, from_ms: int, to_ms: int, columns: Columns) -> tuple[Times, Block]:
        """The rows of a closed interval of time; use `is_value` to find the samples."""
        times = self._times[self._start : self._end]
        low = self._start + int(np.searchsorted(times, from_ms))
        high = self._last(to_ms) + 1
        return self._times[low:high], self._values[low:high, columns]

    def drop_dead(self, living: Container[SeriesKey]) -> list[SeriesKey]:
        """Forget the series that are not `living` and have no sample left; they are returned."""
        rows = self._values[self._start : self._end, : len(self.keys)]
        empty = np.logical_and.reduce(np.isnan(rows), axis=0)
        kept = [i for i, key in enumerate(self.keys) if key in living or not empty[i]]
        dropped = [key for i, key in enumerate(self.keys) if empty[i] and key not in living]
        if dropped:
            self._values = np.ascontiguousarray(self._values[:, kept])
            self.keys = [self.keys[i] for i in kept]
            self.index = {key: column for column, key in enumerate(self.keys)}
            self.names = {}
            for key in self.keys:
                self.names.setdefault(key.name, []).append(key)
        return dropped

    def _last(self, time_ms: int) -> int:
        """The index of the newest row at or before an instant; before `_start` when there is none."""
        if self._end > self._start and self._times[self._end - 1] <= time_ms:
            return self._end - 1
        times = self._times[self._start : self._end]
        return self._start + int(np.searchsorted(times, time_ms, side="right")) - 1

    def _fill_gaps(self, values: Block, times: Times, last: int, oldest_ms: int, columns: Columns) -> None:
        row, gaps = last, _gaps(values)
        while len(gaps) and row > self._start and self._times[row - 1] >= oldest_ms:
            row -= 1
            values[gaps] = self._values[row, columns][gaps]
            times[gaps] = self._times[row]
            gaps = _gaps(values)

    def _nothing(self, columns: Columns) -> tuple[Block, NDArray[np.bool_], Times]:
        count = len(self._values[0, columns])
        return np.full(count, GAP), np.zeros(count, dtype=bool), np.zeros(count, dtype=np.int64)

    def _make_room(self) -> int:
        """Move the rows in use to the front of buffers that have room; returns the next free row."""
        count = self._end - self._start
        capacity = len(self._times) if 2 * count <= len(self._times) else 2 * len(self._times)
        times = np.zeros(capacity, dtype=np.int64)
        times[:count] = self._times[self._start : self._end]
        values = np.full((capacity, self._values.shape[1]), GAP)
        values[:count] = self._values[self._start : self._end]
        self._times, self._values = times, values
        self._start, self._end = 0, count
        return count


@dataclass(frozen=True, slots=True)
class Read:
    """What one selector of one rule needs: which series, and how far back."""

    selection: MatcherSet
    horizon_ms: int


@dataclass(slots=True)
class _Source:
    """The tables of one producer, by horizon, and how its current `keys` object goes into them."""

    tables: dict[int | None, SampleMatrix] = field(default_factory=dict)
    keys: Sequence[SeriesKey] | None = None
    parts: list[tuple[SampleMatrix, Columns, Columns]] = field(default_factory=list)
    """Table, positions in the frame, columns of the table."""
    unreached: list[SampleMatrix] = field(default_factory=list)
    """Tables that no current series goes to."""


class SeriesStore:
    """Keeps frames of series for the selectors of rules. Not thread-safe: one thread, or a lock.

    With `reads`, only series that one of them selects are kept, each as long as
    needed, and frames must be evaluated as they come: a query for a time before the
    newest frame finds only what the rules would. Without `reads`, everything is kept
    forever, which is for tests.
    """

    def __init__(self, reads: Iterable[Read] | None = None) -> None:
        self._reads: dict[str | None, list[Read]] | None = None
        """By metric, the reads that select by labels, too, with the longest horizon first."""
        self._least_ms: dict[str | None, int] = {}
        """By metric, the horizon of all its series."""
        if reads is not None:
            self._reads = {}
            for read in sorted(reads, key=lambda read: -read.horizon_ms):
                name = read.selection.name
                if read.selection.is_name_only:
                    self._least_ms[name] = max(read.horizon_ms, self._least_ms.get(name, _UNREAD))
                else:
                    self._reads.setdefault(name, []).append(read)
        self._sources: dict[str, _Source] = {}
        self._names: dict[str, int] = {}
        self._revision = 0

    def append(self, frame: SeriesFrame, *, source: str = FRAMES) -> None:
        """Add the values of one instant.

        Series that `source` sent before and does not send now end here. A frame older
        than the last one of its source means that the wall clock was set back: later
        samples are dropped.
        """
        time_ms = to_ms(frame.time_unix_s)
        for table, positions, columns in self._parts(source, frame.keys, time_ms):
            row = table.new_row(time_ms, STALE)
            row[columns] = frame.values[positions]
            row[np.isnan(row)] = STALE

    def append_vector(
        self,
        source: str,
        time_ms: int,
        keys: Sequence[SeriesKey],
        values: NDArray[np.float64],
        present: NDArray[np.bool_],
    ) -> None:
        """Add a rule's result: like `append`, but NaN is a value and `present` marks the values."""
        for table, positions, columns in self._parts(source, keys, time_ms):
            row = table.new_row(time_ms, STALE)
            there = present[positions]
            if isinstance(columns, slice):
                np.copyto(row[columns], values[positions], where=there)
            else:
                # A key may occur twice, of which one is present: the other must not overwrite it.
                row[columns[there]] = values[positions][there]

    def append_samples(self, time_unix_s: float, samples: Mapping[SeriesKey, float]) -> None:
        """Add single samples, in order of time; other series stay as they are. For tests.

        A value may be `STALE` or NaN. Only a store without `reads` takes them: the
        others keep too few rows to look past a gap.
        """
        if self._reads is not None:
            raise ValueError("Single samples need a store that keeps everything: create it without reads.")
        tables = self._sources.setdefault("samples", _Source()).tables
        table = tables.setdefault(None, SampleMatrix(None))
        for key in samples:
            self._column(table, key)
        row = table.new_row(to_ms(time_unix_s), None)
        for key, value in samples.items():
            row[table.index[key]] = value

    def revision(self, name: str | None) -> tuple[int, int]:
        """Changes when the series of a metric do (of any metric, for None): selections are then void."""
        return (self._revision, -1) if name is None else (0, self._names.get(name, 0))

    def select(self, selection: MatcherSet) -> list[tuple[SampleMatrix, list[int]]]:
        """The columns that a selector matches, by table."""
        found = []
        for table in (table for source in self._sources.values() for table in source.tables.values()):
            candidates = table.keys if selection.name is None else table.names.get(selection.name, ())
            columns = [table.index[key] for key in candidates if selection.matches(key)]
            if columns:
                found.append((table, columns))
        return found

    def _parts(
        self, name: str, keys: Sequence[SeriesKey], time_ms: int
    ) -> list[tuple[SampleMatrix, Columns, Columns]]:
        """Where the values of `keys` go; series of the source that are not among them end here."""
        source = self._sources.setdefault(name, _Source())
        if source.keys is not keys:
            self._plan(source, keys)
        for table in source.unreached:
            table.new_row(time_ms, STALE)
        return source.parts

    def _plan(self, source: _Source, keys: Sequence[SeriesKey]) -> None:
        self._drop_dead_columns(source, keys)
        targets: dict[int | None, tuple[list[int], list[int]]] = {}
        for position, key in enumerate(keys):
            horizon_ms = self._horizon_ms(key)
            if horizon_ms == _UNREAD:
                continue
            table = source.tables.get(horizon_ms)
            if table is None:
                table = source.tables[horizon_ms] = SampleMatrix(horizon_ms)
            positions, columns = targets.setdefault(horizon_ms, ([], []))
            positions.append(position)
            columns.append(self._column(table, key))
        source.keys = keys
        source.parts = [
            (source.tables[horizon_ms], _columns(positions), _columns(columns))
            for horizon_ms, (positions, columns) in targets.items()
        ]
        source.unreached = [table for horizon_ms, table in source.tables.items() if horizon_ms not in targets]

    def _horizon_ms(self, key: SeriesKey) -> int | None:
        """How long to keep a series, None for forever."""
        if self._reads is None:
            return None
        horizon_ms = self._least_ms.get(key.name, _UNREAD)
        for name in (key.name, None):
            for read in self._reads.get(name, ()):
                if read.horizon_ms <= horizon_ms:
                    break
                if read.selection.matches(key):
                    horizon_ms = read.horizon_ms
                    break
        return horizon_ms

    def _column(self, table: SampleMatrix, key: SeriesKey) -> int:
        column = table.index.get(key)
        if column is None:
            column = table.add(key)
            self._touch((key.name,))
        return column

    def _touch(self, names: Iterable[str]) -> None:
        self._revision += 1
        for name in names:
            self._names[name] = self._names.get(name, 0) + 1

    def _drop_dead_columns(self, source: _Source, keys: Sequence[SeriesKey]) -> None:
        """Delete ended series, once they outnumber the current ones."""
        if sum(len(table.keys) for table in source.tables.values()) <= 2 * len(keys) + 64:
            return
        living = set(keys)
        for table in source.tables.values():
            if dropped := table.drop_dead(living):
                self._touch({key.name for key in (*dropped, *table.keys)})


def _columns(indices: Sequence[int]) -> Columns:
    """The indices as a slice where they are consecutive, which copies much faster."""
    if indices and list(indices) == list(range(indices[0], indices[0] + len(indices))):
        return slice(indices[0], indices[0] + len(indices))
    return np.array(indices, dtype=np.intp)
