"""What a node's collectors read: the newest value of everything, and a short history of its GPUs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perfd.analysis.tables import Floats
from perfd.model import SampleTable

Floats32 = NDArray[np.float32]

_METRIC = re.compile(r"[a-z][a-z0-9_]{0,99}")
"""What can become the name of an exported series."""
_FIRST_ROWS = 16
_SAME_INSTANT_NS = 50_000_000


def values_of(table: SampleTable) -> Floats:
    """A table's numbers as rows by columns."""
    return np.array(list(table.columns.values()), np.float64).reshape(len(table.columns), -1).T


class Names:
    """Positions of names in the order they were first seen, up to a bound, if they match a pattern."""

    def __init__(self, limit: int, pattern: re.Pattern[str] | None = None) -> None:
        self._limit = limit
        self._pattern = pattern
        self._positions: dict[str, int] = {}
        self.known: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self._positions)

    def positions(self, names: Sequence[str]) -> tuple[list[int], int]:
        """The position of each name, -1 where the bound refused it, and how many names it refused."""
        positions = self._positions
        try:
            return [positions[name] for name in names], 0
        except KeyError:
            refused = set()
            for name in dict.fromkeys(names):
                if name in positions:
                    continue
                if len(positions) < self._limit and (self._pattern is None or self._pattern.fullmatch(name)):
                    positions[name] = len(positions)
                else:
                    refused.add(name)
            self.known = tuple(positions)
            return [positions.get(name, -1) for name in names], len(refused)


class Readings:
    """The newest value of each metric of each entity of one scope of a node, entities by metrics."""

    def __init__(self, *, entities: int, metrics: int) -> None:
        self.entities = Names(entities)
        self.metrics = Names(metrics, _METRIC)
        self.values: Floats = np.full((0, 0), np.nan)
        self._seen_s: Floats = np.full((0, 0), -np.inf)
        self._period_s: Floats = np.zeros((0, 0))

    def update(self, table: SampleTable, values: Floats, now_s: float) -> int:
        """Take a table that arrived at `now_s` (monotonic); returns how many names were refused.

        A NaN does not erase what was read before it: a slow metric has a value in some rows only,
        and leaves by its age.
        """
        rows, refused_entities = self.entities.positions(table.entities)
        columns, refused_metrics = self.metrics.positions(list(table.columns))
        self._grow()
        known = np.array([index for index, column in enumerate(columns) if column >= 0], np.intp)
        kept = np.array(columns, np.intp)[known]
        for wave in _waves(rows):
            entities = np.fromiter(wave, np.intp, len(wave))
            block = values[np.ix_(np.fromiter(wave.values(), np.intp, len(wave)), known)]
            present = ~np.isnan(block)
            cells = np.ix_(entities, kept)
            self.values[cells] = np.where(present, block, self.values[cells])
            seen = self._seen_s[cells]
            newly = present & (seen < now_s)
            self._period_s[cells] = np.where(newly & np.isfinite(seen), now_s - seen, self._period_s[cells])
            self._seen_s[cells] = np.where(newly, now_s, seen)
        return refused_entities + refused_metrics

    def fresh(self, now_s: float, stale_after_s: float) -> Floats:
        """The values, NaN where a reading is older than `stale_after_s` and than three of its intervals."""
        age = now_s - self._seen_s
        return np.where(age <= np.maximum(stale_after_s, 3 * self._period_s), self.values, np.nan)

    def _grow(self) -> None:
        shape = (len(self.entities), len(self.metrics))
        if shape != self.values.shape:
            added = [(0, new - old) for new, old in zip(shape, self.values.shape, strict=True)]
            self.values = np.pad(self.values, added, constant_values=np.nan)
            self._seen_s = np.pad(self._seen_s, added, constant_values=-np.inf)
            self._period_s = np.pad(self._period_s, added)


class GpuHistory:
    """Samples of a node's GPUs: instants by GPUs by metrics, float32, bounded in seconds and rows."""

    def __init__(self, *, gpus: int, metrics: int, seconds: float, rows: int) -> None:
        self.gpus = Names(gpus)
        self.metrics = Names(metrics, _METRIC)
        self._keep_ns = round(seconds * 1e9)
        self._max_rows = rows
        self._rows = 0
        self._times_ns: NDArray[np.int64] = np.zeros(_FIRST_ROWS, np.int64)
        self._data: Floats32 = np.full((_FIRST_ROWS, 0, 0), np.nan, np.float32)

    def __len__(self) -> int:
        return self._rows

    def append(self, table: SampleTable, values: Floats) -> int:
        """Add a table, whose rows may be of many instants; returns how many names were refused.

        Rows of different GPUs at most 50 ms apart are one instant: one sweep over the GPUs.
        """
        gpus, refused_gpus = self.gpus.positions(table.entities)
        columns, refused_metrics = self.metrics.positions(list(table.columns))
        if self._data.shape[1:] != (len(self.gpus), len(self.metrics)):
            self._widen()
        kept = [row for row, gpu in enumerate(gpus) if gpu >= 0]
        if kept:
            known = [index for index, column in enumerate(columns) if column >= 0]
            self._put(
                times_ns=[table.times_unix_ns[row] for row in kept],
                gpus=[gpus[row] for row in kept],
                columns=[columns[index] for index in known],
                values=values[np.ix_(kept, known)],
            )
        return refused_gpus + refused_metrics

    def since(self, time_unix_s: float) -> tuple[Floats, Floats32]:
        """Instants from `time_unix_s` on, and their (t, gpu, metric) values; copies."""
        times = self._times_ns[: self._rows]
        # Instants are almost ordered; a late batch may have put a few out of place.
        order = np.flatnonzero(times >= time_unix_s * 1e9)
        order = order[np.argsort(times[order], kind="stable")]
        return times[order] / 1e9, self._data[order]

    def newest_unix_s(self) -> float:
        """The newest instant, NaN before the first."""
        return float(self._times_ns[self._rows - 1]) / 1e9 if self._rows else float("nan")

    def interval_s(self) -> float:
        """The median distance of the newest instants, 0 when there are fewer than two."""
        if self._rows < 2:
            return 0.0
        return float(np.median(np.diff(self._times_ns[max(0, self._rows - 32) : self._rows]))) / 1e9

    def _put(
        self, *, times_ns: Sequence[int], gpus: Sequence[int], columns: Sequence[int], values: Floats
    ) -> None:
        instants = _instants(times_ns, gpus)
        count = instants[-1] + 1
        first = self._make_room(count)
        self._data[first : first + count] = np.nan
        # A reading too large for float32 becomes infinite, which is no reason to refuse the batch.
        with np.errstate(over="ignore"):
            self._data[np.array(instants)[:, None] + first, np.array(gpus)[:, None], np.array(columns)] = (
                values
            )
        for instant, time_ns in zip(reversed(instants), reversed(times_ns), strict=True):
            self._times_ns[first + instant] = time_ns
        self._rows = first + count

    def _make_room(self, count: int) -> int:
        """Room for `count` rows; returns where they begin."""
        if self._rows + count <= len(self._times_ns):
            return self._rows
        oldest_ns = self._times_ns[: self._rows].max(initial=0) - self._keep_ns
        expired = int(np.argmax(np.append(self._times_ns[: self._rows] >= oldest_ns, True)))
        drop = max(expired, self._rows + count - max(self._max_rows, count))
        # Rows move only when a quarter goes at once, so that moving costs little per row.
        if drop < self._rows // 4 and self._rows + count <= self._max_rows:
            drop = 0
        elif drop:
            drop = max(drop, min(self._rows, self._rows // 4))
        kept = self._rows - drop
        capacity = len(self._times_ns)
        while capacity < kept + count:
            capacity *= 2
        times_ns = np.zeros(capacity, np.int64)
        times_ns[:kept] = self._times_ns[drop : self._rows]
        data = np.full((capacity, *self._data.shape[1:]), np.nan, np.float32)
        data[:kept] = self._data[drop : self._rows]
        self._times_ns, self._data = times_ns, data
        return kept

    def _widen(self) -> None:
        _, gpus, metrics = self._data.shape
        added = ((0, 0), (0, len(self.gpus) - gpus), (0, len(self.metrics) - metrics))
        self._data = np.pad(self._data, added, constant_values=np.nan)


def _waves(rows: Sequence[int]) -> list[dict[int, int]]:
    """Rows in groups that name each entity once, in order: entity to row; refused entities left out."""
    waves: list[dict[int, int]] = []
    occurrences: dict[int, int] = {}
    for row, entity in enumerate(rows):
        if entity < 0:
            continue
        wave = occurrences.get(entity, 0)
        occurrences[entity] = wave + 1
        if wave == len(waves):
            waves.append({})
        waves[wave][entity] = row
    return waves


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
