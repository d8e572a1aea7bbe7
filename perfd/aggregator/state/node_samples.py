"""What a node's collectors read: the newest value of everything, and a short history of its GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np
from numpy.typing import NDArray

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.state.alike_tables import HISTORY_COLUMNS, AlikeBlock
from perfd.aggregator.state.gpu_history import GpuHistory
from perfd.aggregator.state.table_layout import Layout, TableLayout
from perfd.analysis.data.job_data import Floats
from perfd.model import ColumnBlock, SampleTable, Scope

_MOST_WAITING = 8
"""Tables of a scope: some 25 kB of a node with 8 GPUs. As a round reads all every 5 s, usually 5 wait."""
_VALUE_BYTES = 8
"""Of a number in a `ColumnBlock`, a double."""
_Unread = tuple[int, int, bytes]
"""Numbers as `_numbers` takes them: several tables come before the newest one is read."""
Arrived = tuple[SampleTable, float]
"""A table, and when it came (monotonic)."""


def values_of(table: SampleTable) -> Floats:
    """A table's numbers as rows by columns; read-only."""
    columns = table.columns
    if isinstance(columns, ColumnBlock):
        return _numbers(len(columns.names), columns.rows, columns.block)
    return np.array(list(columns.values()), np.float64).reshape(len(columns), -1).T


def _numbers(columns: int, rows: int, block: bytes) -> Floats:
    return np.ndarray((columns, rows), np.float64, block).T


def _values_of_all(tables: Sequence[Arrived]) -> Floats:
    """The numbers of tables with the same rows and columns: tables by columns by rows; read-only."""
    blocks = [cast("ColumnBlock", table.columns) for table, _ in tables]
    shape = len(blocks), len(blocks[0].names), blocks[0].rows
    return np.ndarray(shape, np.float64, b"".join([one.block for one in blocks]))


def _all_known(values: Floats) -> bool:
    """Whether no value is NaN: the largest would be, and takes less time than a search."""
    return not math.isnan(np.maximum.reduce(values, axis=None))


@dataclass(frozen=True, slots=True)
class _Alike:
    """What a whole table shares with those after it."""

    entities: Sequence[str]
    columns: Sequence[str]
    plan: TableLayout


class NodeReadings(Mapping[Scope, "NodeSamples"]):
    """The newest values of a node by scope, and a short history of those of its GPUs.

    A table like the one before waits until values are read, or several wait: taken together they cost
    less. Not thread-safe, reading neither.
    """

    # Slots here and in what a node consists of: each batch finds them in memory, not in a cache.
    __slots__ = (
        "_alike",
        "_counters",
        "_gpu_history",
        "_limits",
        "_of_scope",
        "_waiting",
        "_waiting_until_ns",
        "gpu_tables",
    )

    def __init__(self, limits: Limits, counters: AggregatorCounters) -> None:
        self._limits = limits
        self._counters = counters
        self._of_scope: dict[Scope, NodeSamples] = {}
        self._alike: dict[Scope, _Alike] = {}
        """What the newest table that was taken has in common with those that may wait."""
        self._waiting: dict[Scope, list[Arrived]] = {}
        self._waiting_until_ns = 0
        """The newest time of the tables of GPUs that wait."""
        self._gpu_history = GpuHistory(
            self._new_layout(),
            HISTORY_COLUMNS,
            seconds=limits.gpu_history_s,
            rows=limits.gpu_history_rows,
        )
        self.gpu_tables = 0
        """How many tables of its GPUs came: the history has changed when this has."""

    def __getitem__(self, scope: Scope) -> NodeSamples:
        self._settle(scope)
        return self._of_scope[scope]

    def __contains__(self, scope: object) -> bool:
        return scope in self._of_scope

    def __iter__(self) -> Iterator[Scope]:
        return iter(self._of_scope)

    def __len__(self) -> int:
        return len(self._of_scope)

    @property
    def gpu_history(self) -> GpuHistory:
        """The recent samples of its GPUs."""
        self._settle(Scope.GPU)
        return self._gpu_history

    @property
    def gpus(self) -> tuple[str, ...]:
        """Its GPUs of which samples came, in the order of the history."""
        return self._gpu_history.layout.entities.known

    def drop_gpus_after(self, time_ns: int) -> None:
        """Drop the samples of its GPUs after a time."""
        if self._waiting_until_ns > time_ns:
            self._settle(Scope.GPU)
        self._gpu_history.drop_after(time_ns)

    def take(self, table: SampleTable, now_s: float) -> bool:
        """Take a table that arrived at `now_s` (monotonic); returns whether it named something new."""
        scope, columns = table.scope, table.columns
        alike = self._alike.get(scope)
        # Tables of one form share the tuples of their names.
        if alike is None or alike.entities is not table.entities:
            pass
        elif isinstance(columns, AlikeBlock):
            if alike.columns is columns.names:
                self._take_alike(table, columns, alike.plan, now_s)
                return False
        elif isinstance(columns, ColumnBlock) and alike.columns is columns.names:
            self._counters.samples += len(columns.block) // _VALUE_BYTES
            if scope is Scope.GPU:
                self.gpu_tables += 1
            waiting = self._waiting.setdefault(scope, [])
            waiting.append((table, now_s))
            if scope is Scope.GPU:
                self._waiting_until_ns = max(self._waiting_until_ns, table.times_unix_ns[-1])
            if len(waiting) >= _MOST_WAITING:
                self._settle(scope)
            return False
        if not columns or not len(table.times_unix_ns):
            return False
        self._settle(scope)
        return self._take_now(table, now_s)

    def _take_now(self, table: SampleTable, now_s: float) -> bool:
        scope, columns = table.scope, table.columns
        values = values_of(table)
        self._counters.samples += values.size
        samples = self._of_scope.get(scope)
        if samples is None:
            layout = self._gpu_history.layout if scope is Scope.GPU else self._new_layout()
            samples = self._of_scope[scope] = NodeSamples(layout)
        layout = samples.layout
        shape = layout.shape
        names = columns.names if isinstance(columns, ColumnBlock) else tuple(columns)
        plan = layout.plan(table.entities, names)
        samples.update(plan, values, now_s)
        if scope is Scope.GPU:
            self._gpu_history.append(plan, table.times_unix_ns, values)
            self.gpu_tables += 1
        if plan.refused:
            self._counters.rejected["names_per_scope"] += plan.refused
        if plan.whole:
            self._alike[scope] = _Alike(table.entities, names, plan)
        else:
            self._alike.pop(scope, None)
        return layout.shape != shape

    def _take_alike(self, table: SampleTable, columns: AlikeBlock, plan: TableLayout, now_s: float) -> None:
        """Take a table like the one before that was read together with those of other nodes."""
        scope, block = table.scope, columns.block
        if self._waiting.get(scope):
            self._settle(scope)
        self._counters.samples += len(block) // _VALUE_BYTES
        samples = self._of_scope[scope]
        if not (columns.all_known and samples.renew((len(columns.names), columns.rows, block), now_s)):
            samples.update(plan, values_of(table), now_s)
        if scope is Scope.GPU:
            self.gpu_tables += 1
            if not self._gpu_history.add(table.times_unix_ns, columns.kept):
                self._gpu_history.append(plan, table.times_unix_ns, values_of(table))

    def _settle(self, scope: Scope) -> None:
        """Take the tables that wait: together if each has all values and all came in order."""
        waiting = self._waiting.get(scope)
        if not waiting:
            return
        self._waiting[scope] = []
        if scope is Scope.GPU:
            self._waiting_until_ns = 0
        samples, plan = self._of_scope[scope], self._alike[scope].plan
        values = _values_of_all(waiting)
        newest = values_of(waiting[-1][0])
        if not (_all_known(values) and samples.replace([now_s for _, now_s in waiting], newest)):
            for table, now_s in waiting:
                samples.update(plan, values_of(table), now_s)
        times_ns = [table.times_unix_ns for table, _ in waiting]
        if scope is Scope.GPU and not self._gpu_history.extend(times_ns, values):
            for table, _ in waiting:
                self._gpu_history.append(plan, table.times_unix_ns, values_of(table))

    def _new_layout(self) -> Layout:
        return Layout(
            entities=self._limits.entities_per_scope,
            metrics=self._limits.metrics_per_scope,
            cells=self._limits.series_per_scope,
        )


class NodeSamples:
    """The newest value of each metric of each entity of one scope of a node, entities by metrics."""

    __slots__ = "_newest_s", "_period_s", "_seen_s", "_values", "layout"

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._values: Floats | _Unread = np.full((0, 0), np.nan)
        self._seen_s: Floats | float = np.full((0, 0), np.nan)
        """One number if the newest table had a value for every metric of every entity."""
        self._period_s: Floats | float = np.full((0, 0), np.nan)
        self._newest_s = -np.inf

    @property
    def values(self) -> Floats:
        """Not to be changed: they may be those of a message."""
        if isinstance(self._values, tuple):
            self._values = _numbers(*self._values)
        return self._values

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
            self._seen_s, self._values = now_s, values
        else:
            self._put(slice(None), values, now_s)
        self._newest_s = max(self._newest_s, now_s)

    def renew(self, values: Floats | _Unread, now_s: float) -> bool:
        """Take a table that has a value for every metric; False, and it is not taken, if one came later."""
        if now_s > self._newest_s:
            self._period_s = now_s - self._seen_s
            self._seen_s = self._newest_s = now_s
        elif now_s < self._newest_s or not isinstance(self._seen_s, float):
            return False
        # Else it is a further sweep of a batch: no time has passed since the one before.
        self._values = values
        return True

    def replace(self, arrived_s: Sequence[float], values: Floats) -> bool:
        """Take tables that have a value for every metric, of which the last has `values`, in their order.

        False, and none is taken, where one came before another.
        """
        in_order = all(one <= other for one, other in pairwise((self._newest_s, *arrived_s)))
        # Only the first one can be refused.
        return in_order and all(self.renew(values, now_s) for now_s in arrived_s)

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
        values = self._values = self.values.copy()
        seen_s = self._seen_s[cells]
        absent = np.isnan(block)
        if absent.any():
            block = np.where(absent, values[cells], block)
        older = ~absent & (seen_s != now_s)
        if older.any():
            self._period_s[cells] = np.where(older, now_s - seen_s, self._period_s[cells])
            self._seen_s[cells] = np.where(older, now_s, seen_s)
        values[cells] = block

    def _grow(self) -> None:
        added = [(0, new - old) for new, old in zip(self.layout.shape, self.values.shape, strict=True)]
        seen_s, period_s = self._of_each(self._seen_s), self._of_each(self._period_s)
        self._values = np.pad(self.values, added, constant_values=np.nan)
        self._seen_s = np.pad(seen_s, added, constant_values=np.nan)
        self._period_s = np.pad(period_s, added, constant_values=np.nan)

    def _of_each(self, number: Floats | float) -> Floats:
        """A number of each value, where there is one of all."""
        return number if isinstance(number, np.ndarray) else np.full(self.values.shape, number)
