"""Recent samples of many series, in memory, for rules.

A store keeps only what its rules read, and each series only as long as the longest range
over it. Staleness is that of Prometheus: a series that its source no longer sends ends at
that time, and any other is valid for five minutes after its last sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perfd.metrics.series import SeriesFrame, SeriesKey
from perfd.rules.label_matchers import MatcherSet
from perfd.rules.sample_matrix import STALE, Columns, SampleMatrix

LOOKBACK_MS = 5 * 60 * 1000
"""How long a sample is valid; the default of Prometheus (`--query.lookback-delta`)."""

FRAMES = "frames"
"""The default source in `SeriesStore.append`."""

_UNREAD = -1
"""The horizon of a series that no rule reads."""


def to_ms(time_s: float) -> int:
    """A time or duration in the milliseconds that Prometheus counts in."""
    return round(time_s * 1000)


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
