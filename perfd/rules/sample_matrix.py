"""Samples of many series that share their times: rows are instants, columns are series."""

from __future__ import annotations

from collections.abc import Container
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from perfd.metrics.series import SeriesKey

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


def is_value(block: Block) -> NDArray[np.bool_]:
    """Where a block holds samples, NaN samples too, and not the end of a series or a gap."""
    present: NDArray[np.bool_] = ~np.isnan(block)
    if not present.all():
        bits = block.view(np.int64)
        present = (bits != _STALE_BITS) & (bits != _GAP_BITS)
    return present


class SampleMatrix:
    """A growing matrix that forgets rows older than its horizon (None: keeps all).

    The newest row is always kept.
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
        present = is_value(values)
        times: Times = np.full(len(values), self._times[last])
        if not present.all():
            values = values.copy()
            self._fill_gaps(values, times, last, time_ms - lookback_ms, columns)
            present = is_value(values)
        return values, present, times

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
        row = last
        gaps = np.flatnonzero(values.view(np.int64) == _GAP_BITS)
        while len(gaps) and row > self._start and self._times[row - 1] >= oldest_ms:
            row -= 1
            values[gaps] = self._values[row, columns][gaps]
            times[gaps] = self._times[row]
            gaps = np.flatnonzero(values.view(np.int64) == _GAP_BITS)

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
