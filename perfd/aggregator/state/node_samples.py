"""What a node's collectors read: the newest value of everything, and a short history of its GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.state.gpu_history import GpuHistory
from perfd.aggregator.state.table_layout import Layout, TableLayout
from perfd.analysis.data.job_data import Floats
from perfd.model import ColumnBlock, GpuColumn, SampleTable, Scope

_HISTORY_COLUMNS = frozenset(column.value for column in GpuColumn)
"""The columns that analysis and charts read; of all others only the newest value is kept."""


def values_of(table: SampleTable) -> Floats:
    """A table's numbers as rows by columns; read-only."""
    columns = table.columns
    if isinstance(columns, ColumnBlock):
        return np.ndarray((len(columns.names), columns.rows), np.float64, columns.block).T
    return np.array(list(columns.values()), np.float64).reshape(len(columns), -1).T


def _all_known(values: Floats) -> bool:
    """Whether no value is NaN: the largest would be, and takes less time than a search."""
    return not math.isnan(np.maximum.reduce(values, axis=None))


class NodeReadings(Mapping[Scope, "NodeSamples"]):
    """The newest values of a node by scope, and a short history of those of its GPUs."""

    # Slots here and in what a node consists of: each batch finds them in memory, not in a cache.
    __slots__ = "_counters", "_limits", "_of_scope", "gpu_history", "gpu_tables"

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
        layout = samples.layout
        shape = layout.shape
        columns = table.columns
        names = columns.names if isinstance(columns, ColumnBlock) else tuple(columns)
        plan = layout.plan(table.entities, names)
        samples.update(plan, values, now_s)
        if table.scope is Scope.GPU:
            self.gpu_history.append(plan, table.times_unix_ns, values)
            self.gpu_tables += 1
        if plan.refused:
            self._counters.rejected["names_per_scope"] += plan.refused
        return layout.shape != shape

    def _new_layout(self) -> Layout:
        return Layout(
            entities=self._limits.entities_per_scope,
            metrics=self._limits.metrics_per_scope,
            cells=self._limits.series_per_scope,
        )


class NodeSamples:
    """The newest value of each metric of each entity of one scope of a node, entities by metrics."""

    __slots__ = "_newest_s", "_period_s", "_seen_s", "layout", "values"

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.values: Floats = np.full((0, 0), np.nan)
        """Not to be changed: they may be those of a message."""
        self._seen_s: Floats | float = np.full((0, 0), np.nan)
        """One number if the newest table had a value for every metric of every entity."""
        self._period_s: Floats | float = np.full((0, 0), np.nan)
        self._newest_s = -np.inf

    def update(self, plan: TableLayout, values: Floats, now_s: float) -> None:
        """Take a table that arrived at `now_s` (monotonic).

        A NaN does not erase what was read before it: a slow metric has a value in some rows only,
        and leaves by its age.
        """
        if self.values.shape != self.layout.shape:
            self._grow()
        if not plan.whole:
            for entities, rows in plan.waves:
                self._put(np.ix_(entities, plan.metrics), values[np.ix_(rows, plan.kept)], now_s)
        elif now_s > self._newest_s and _all_known(values):
            # The usual case: the table has a newer value for every metric.
            self._period_s = now_s - self._seen_s
            self._seen_s, self.values = now_s, values
        else:
            self._put(slice(None), values, now_s)
        self._newest_s = max(self._newest_s, now_s)

    def fresh(self, now_s: float, stale_after_s: float) -> Floats:
        """The values, NaN where a reading is older than `stale_after_s` and than three of its intervals.

        As `values` not to be changed.
        """
        if isinstance(self._seen_s, float) and now_s - self._seen_s <= stale_after_s:
            return self.values
        limit_s = np.fmax(stale_after_s, 3 * self._period_s)
        return np.where(now_s - self._seen_s <= limit_s, self.values, np.nan)

    def _put(self, cells: slice | tuple[NDArray[np.intp], ...], block: Floats, now_s: float) -> None:
        self._seen_s, self._period_s = self._of_each(self._seen_s), self._of_each(self._period_s)
        self.values = self.values.copy()
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
        seen_s, period_s = self._of_each(self._seen_s), self._of_each(self._period_s)
        self.values = np.pad(self.values, added, constant_values=np.nan)
        self._seen_s = np.pad(seen_s, added, constant_values=np.nan)
        self._period_s = np.pad(period_s, added, constant_values=np.nan)

    def _of_each(self, number: Floats | float) -> Floats:
        """A number of each value, where there is one of all."""
        return number if isinstance(number, np.ndarray) else np.full(self.values.shape, number)
