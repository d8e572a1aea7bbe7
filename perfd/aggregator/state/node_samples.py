"""What a node's collectors read: the newest value of everything, and a short history of its GPUs."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.state.table_layout import Layout, TableLayout
from perfd.analysis.data.job_data import Floats
from perfd.model import ColumnBlock, GpuColumn, SampleTable, Scope

Floats32 = NDArray[np.float32]

_CHUNK_ROWS = 16
"""Rows that are stored together, so that old ones are dropped without a copy."""
_INTERVAL_CHUNKS = 3
"""Chunks of newest rows from whose times an agent's interval is computed."""
_HISTORY_COLUMNS = frozenset(column.value for column in GpuColumn)
"""The columns that analysis and charts read; of all others only the newest value is kept."""
_SAME_INSTANT_NS = 50_000_000
"""Apart: GPUs of a node that are read one after another, below the shortest interval of 0.1 s."""


def values_of(table: SampleTable) -> Floats:
    """A table's numbers as rows by columns; read-only."""
    columns = table.columns
    if isinstance(columns, ColumnBlock):
        return np.frombuffer(columns.block).reshape(len(columns), -1).T
    return np.array(list(columns.values()), np.float64).reshape(len(columns), -1).T


class NodeReadings(Mapping[Scope, "NodeSamples"]):
    """The newest values of a node by scope, and a short history of those of its GPUs."""

    def __init__(self, limits: Limits, counters: AggregatorCounters) -> None:
        self._limits = limits
        self._counters = counters
        self._of_scope: dict[Scope, NodeSamples] = {}
        self.gpu_history = GpuHistory(
            self._new_layout(),
            _HISTORY_COLUMNS,
            seconds=limits.gpu_history_s,
            rows=limits.gpu_history_rows,
        )
        self.gpu_tables = 0
        """How many tables of its GPUs came: the history has changed when this has."""

    def __getitem__(self, scope: Scope) -> NodeSamples:
        return self._of_scope[scope]

    def __iter__(self) -> Iterator[Scope]:
        return iter(self._of_scope)

    def __len__(self) -> int:
        return len(self._of_scope)

    def take(self, table: SampleTable, now_s: float) -> bool:
        """Take a table that arrived at `now_s` (monotonic); returns whether it named something new."""
        if not table.columns or not len(table.times_unix_ns):
            return False
        values = values_of(table)
        self._counters.samples += values.size
        samples = self._of_scope.get(table.scope)
        if samples is None:
            layout = self.gpu_history.layout if table.scope is Scope.GPU else self._new_layout()
            samples = self._of_scope[table.scope] = NodeSamples(layout)
        shape = samples.layout.shape
        plan = samples.layout.plan(table.entities, tuple(table.columns))
        samples.update(plan, values, now_s)
        if table.scope is Scope.GPU:
            self.gpu_history.append(plan, table.times_unix_ns, values)
            self.gpu_tables += 1
        if plan.refused:
            self._counters.rejected["names_per_scope"] += plan.refused
        return samples.layout.shape != shape

    def _new_layout(self) -> Layout:
        return Layout(
            entities=self._limits.entities_per_scope,
            metrics=self._limits.metrics_per_scope,
            cells=self._limits.series_per_scope,
        )


class NodeSamples:
    """The newest value of each metric of each entity of one scope of a node, entities by metrics."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.values: Floats = np.full((0, 0), np.nan)
        self._seen_s: Floats = np.full((0, 0), np.nan)
        self._period_s: Floats = np.full((0, 0), np.nan)
        self._newest_s = -np.inf
        self._whole = False
        """The newest table had a value for every metric of every entity."""

    def update(self, plan: TableLayout, values: Floats, now_s: float) -> None:
        """Take a table that arrived at `now_s` (monotonic).

        A NaN does not erase what was read before it: a slow metric has a value in some rows only,
        and leaves by its age.
        """
        if self.values.shape != self.layout.shape:
            self._grow()
        self._whole = False
        if not plan.whole:
            for entities, rows in plan.waves:
                self._put(np.ix_(entities, plan.metrics), values[np.ix_(rows, plan.kept)], now_s)
        elif now_s > self._newest_s and not np.isnan(np.minimum.reduce(values, axis=None)):
            # The usual case: the table has a newer value for every metric.
            np.subtract(now_s, self._seen_s, out=self._period_s)
            self._seen_s.fill(now_s)
            self.values[:] = values
            self._whole = True
        else:
            self._put(slice(None), values, now_s)
        self._newest_s = max(self._newest_s, now_s)

    def fresh(self, now_s: float, stale_after_s: float) -> Floats:
        """The values, NaN where a reading is older than `stale_after_s` and than three of its intervals."""
        if self._whole and now_s - self._newest_s <= stale_after_s:
            return self.values.copy()
        limit_s = np.fmax(stale_after_s, 3 * self._period_s)
        return np.where(now_s - self._seen_s <= limit_s, self.values, np.nan)

    def _put(self, cells: slice | tuple[NDArray[np.intp], ...], block: Floats, now_s: float) -> None:
        seen_s = self._seen_s[cells]
        absent = np.isnan(block)
        if absent.any():
            block = np.where(absent, self.values[cells], block)
        older = ~absent & (seen_s != now_s)
        if older.any():
            self._period_s[cells] = np.where(older, now_s - seen_s, self._period_s[cells])
            self._seen_s[cells] = np.where(older, now_s, seen_s)
        self.values[cells] = block

    def _grow(self) -> None:
        added = [(0, new - old) for new, old in zip(self.layout.shape, self.values.shape, strict=True)]
        self.values = np.pad(self.values, added, constant_values=np.nan)
        self._seen_s = np.pad(self._seen_s, added, constant_values=np.nan)
        self._period_s = np.pad(self._period_s, added, constant_values=np.nan)


@dataclass(slots=True)
class _Chunk:
    """Rows of a history, and room for more."""

    times_ns: NDArray[np.int64]
    data: Floats32
    rows: int = 0
    newest_ns: int = 0


class GpuHistory:
    """Samples of a node's GPUs: instants by GPUs by metrics, float32, bounded in seconds and rows."""

    def __init__(self, layout: Layout, kept: Collection[str], *, seconds: float, rows: int) -> None:
        """Only the layout's metrics in `kept` are stored."""
        self.layout = layout
        self.metrics: tuple[str, ...] = ()
        """The metrics of the third axis."""
        self._kept = kept
        self._places: NDArray[np.intp] = np.zeros(0, np.intp)
        """Their positions in the layout."""
        self._shape = 0, 0
        self._keep_ns = round(seconds * 1e9)
        self._max_rows = rows
        self._rows = 0
        self._latest_ns = 0
        """No instant is later."""
        self._chunks: deque[_Chunk] = deque()

    def __len__(self) -> int:
        return self._rows

    def append(self, plan: TableLayout, times_ns: Sequence[int], values: Floats) -> None:
        """Add a table, whose rows may be of many instants.

        Rows of different GPUs at most 50 ms apart are one instant: one sweep over the GPUs.
        """
        if self._shape != self.layout.shape:
            self._widen()
        if not plan.waves:
            return
        # A reading too large for float32 becomes infinite; the batch is not refused for it.
        with np.errstate(over="ignore"):
            if plan.whole and abs(times_ns[-1] - times_ns[0]) <= _SAME_INSTANT_NS:
                self._add(times_ns[0], values.T.take(self._places, 0).T)
            else:
                self._put(plan, times_ns, values)

    def since(self, time_unix_s: float) -> tuple[Floats, Floats32]:
        """Instants from `time_unix_s` on, in order, and their (t, gpu, metric) values; copies."""
        since_ns = time_unix_s * 1e9
        chunks = [chunk for chunk in self._chunks if chunk.newest_ns >= since_ns]
        if not chunks:
            return np.zeros(0), np.zeros((0, self._shape[0], len(self.metrics)), np.float32)
        times = np.concatenate([chunk.times_ns[: chunk.rows] for chunk in chunks])
        data = np.concatenate([chunk.data[: chunk.rows] for chunk in chunks])
        # Instants are almost ordered; a late batch may have put a few out of place.
        if (times[1:] >= times[:-1]).all():
            start = int(np.searchsorted(times, since_ns))
            return times[start:] / 1e9, data[start:]
        order = np.flatnonzero(times >= since_ns)
        order = order[np.argsort(times[order], kind="stable")]
        return times[order] / 1e9, data[order]

    def drop_after(self, time_ns: int) -> None:
        """Drop the instants after a time."""
        if self._latest_ns <= time_ns:
            return
        self._latest_ns = time_ns
        chunks, self._chunks = self._chunks, deque()
        for chunk in chunks:
            kept = chunk.times_ns[: chunk.rows] <= time_ns
            self._rows -= chunk.rows - (rows := int(kept.sum()))
            if not rows:
                continue
            if rows < chunk.rows:
                chunk.data[:rows] = chunk.data[: chunk.rows][kept]
                chunk.times_ns[:rows] = chunk.times_ns[: chunk.rows][kept]
                chunk.rows, chunk.newest_ns = rows, int(chunk.times_ns[:rows].max())
            self._chunks.append(chunk)

    def newest_unix_s(self) -> float:
        """The newest instant, NaN before the first."""
        return max((chunk.newest_ns / 1e9 for chunk in self._chunks), default=float("nan"))

    def interval_s(self) -> float:
        """The median distance of the newest instants, 0 when there are fewer than two."""
        if self._rows < 2:
            return 0.0
        newest = list(self._chunks)[-_INTERVAL_CHUNKS:]
        times = np.concatenate([chunk.times_ns[: chunk.rows] for chunk in newest])
        distances, middle = times[1:] - times[:-1], (len(times) - 1) // 2
        distances.partition(middle)
        return float(distances[middle]) / 1e9

    def _put(self, plan: TableLayout, times_ns: Sequence[int], values: Floats) -> None:
        pairs = sorted(
            (row, gpu)
            for gpus, rows in plan.waves
            for gpu, row in zip(gpus.tolist(), rows.tolist(), strict=True)
        )
        instants = _instants([times_ns[row] for row, _ in pairs], [gpu for _, gpu in pairs])
        # A table may have far more instants than are kept; all of them at once would be gigabytes.
        first = bisect_left(instants, instants[-1] + 1 - self._max_rows)
        rows, gpus = [row for row, _ in pairs[first:]], [gpu for _, gpu in pairs[first:]]
        times = [times_ns[row] for row in rows]
        instants = [instant - instants[first] for instant in instants[first:]]
        data = np.full((instants[-1] + 1, *self._shape), np.nan, np.float32)
        data[np.array(instants)[:, None], np.array(gpus)[:, None], plan.metrics] = values[
            np.ix_(rows, plan.kept)
        ]
        began_ns = dict(zip(reversed(instants), reversed(times), strict=True))
        for instant, row in enumerate(data[:, :, self._places]):
            self._add(began_ns[instant], row)

    def _add(self, time_ns: int, row: Floats | Floats32) -> None:
        if not self._chunks or self._chunks[-1].rows == len(self._chunks[-1].times_ns):
            self._drop_old()
            size = min(_CHUNK_ROWS, self._max_rows)
            data = np.empty((size, self._shape[0], len(self.metrics)), np.float32)
            self._chunks.append(_Chunk(np.zeros(size, np.int64), data))
        chunk = self._chunks[-1]
        chunk.data[chunk.rows] = row
        chunk.times_ns[chunk.rows] = time_ns
        chunk.newest_ns = time_ns if not chunk.rows else max(chunk.newest_ns, time_ns)
        chunk.rows += 1
        self._rows += 1
        self._latest_ns = max(self._latest_ns, time_ns)

    def _drop_old(self) -> None:
        """Make room for another chunk."""
        oldest_ns = max((chunk.newest_ns for chunk in self._chunks), default=0) - self._keep_ns
        while self._chunks and (
            self._chunks[0].newest_ns < oldest_ns or self._rows + _CHUNK_ROWS > self._max_rows
        ):
            self._rows -= self._chunks.popleft().rows

    def _widen(self) -> None:
        self._shape = self.layout.shape
        known = self.layout.metrics.known
        self._places = np.array([place for place, name in enumerate(known) if name in self._kept], np.intp)
        self.metrics = tuple([known[place] for place in self._places])
        for chunk in self._chunks:
            _, gpus, metrics = chunk.data.shape
            added = ((0, 0), (0, self._shape[0] - gpus), (0, len(self.metrics) - metrics))
            chunk.data = np.pad(chunk.data, added, constant_values=np.nan)


def _instants(times_ns: Sequence[int], gpus: Sequence[int]) -> list[int]:
    """For each row the instant that it belongs to, counted from 0."""
    instants: list[int] = []
    seen: set[int] = set()
    instant, started_ns = 0, times_ns[0]
    for time_ns, gpu in zip(times_ns, gpus, strict=True):
        if gpu in seen or abs(time_ns - started_ns) > _SAME_INSTANT_NS:
            instant, started_ns = instant + 1, time_ns
            seen = set()
        seen.add(gpu)
        instants.append(instant)
    return instants
