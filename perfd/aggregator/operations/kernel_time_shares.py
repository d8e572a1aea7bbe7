"""Shares of time that ranks spent in one kind of operation, over the newest windows that they reported."""

from __future__ import annotations

import math

import numpy as np

from perfd.aggregator.operations.growable_arrays import chosen, roomier
from perfd.analysis.data.job_data import Floats, Ints
from perfd.analysis.data.robust_stats import median
from perfd.model import CollectiveTimes

_WINDOWS = 32
"""Newest windows of an operation that its share of time is the median of: the first collectives of a job
wait for seconds while ranks start, and a mean would carry that for minutes."""
_LONGEST_NS = 86_400 * 10**9
"""Of a window; a longer one is garbage."""
_MOST_OPERATIONS = 1 << 32
"""Windows of more than this, or of more than a day, are garbage, and their sums might be no numbers."""
_COUNT, _COVERED_NS, _FIRST_NS, _LAST_NS, _OPERATIONS = range(5)


class TimeShareWindows:
    """Of the columns of communicators, (communicators, columns); rows are made with `make_room`."""

    def __init__(self, columns: int) -> None:
        self._ratio: Floats = np.full((1, columns, _WINDOWS), np.nan)
        """Share of time in kernels, of the newest windows that had any; NaN where there is none yet."""
        self._operations: Ints = np.zeros((1, columns, _WINDOWS), dtype=np.int64)
        self._start_ns: Ints = np.zeros((1, columns, _WINDOWS), dtype=np.int64)
        self._sums: Ints = np.zeros((1, columns, 5), dtype=np.int64)
        """How many windows there were and the time that they cover, the start of the first and the end of the
        last, and the operations in those in memory. Rare kinds of operations have no window for part of the
        time."""

    def make_room(self, rows: int) -> None:
        """Have so many rows of windows."""
        self._ratio = roomier(self._ratio, (rows,))
        self._operations = roomier(self._operations, (rows,))
        self._start_ns = roomier(self._start_ns, (rows,))
        self._sums = roomier(self._sums, (rows,))

    def clear(self, row: int) -> None:
        """Forget what a communicator reported."""
        self._ratio[row] = np.nan
        self._operations[row] = 0
        self._sums[row] = 0

    def put(self, row: int, column: int, times: CollectiveTimes, *, new_ratio: float = 1.0) -> None:
        """Add a window of one rank, or the last part of it: as much as is new."""
        length_ns = times.end_unix_ns - times.start_unix_ns
        possible = 0 < length_ns <= _LONGEST_NS and times.count <= _MOST_OPERATIONS
        if not possible or not math.isfinite(times.total_s) or new_ratio <= 0:
            return
        ratio, number = times.total_s / (length_ns / 1e9), times.count
        if new_ratio < 1:
            length_ns, number = max(1, round(new_ratio * length_ns)), round(new_ratio * number)
        start_ns = times.end_unix_ns - length_ns
        count, covered_ns, first_ns, last_ns, operations = self._sums[row, column].tolist()
        place = (row, column, count % _WINDOWS)
        operations += number - int(self._operations[place])
        self._ratio[place] = ratio
        self._operations[place] = number
        self._start_ns[place] = start_ns
        self._sums[row, column] = (
            count + 1,
            covered_ns + length_ns,
            first_ns if count else start_ns,
            max(last_ns, times.end_unix_ns),
            operations,
        )

    def usual_ratio(self, rows: Ints) -> Floats:
        """(rows, columns): the share of time in kernels that is usual."""
        sums = chosen(self._sums, rows)
        elapsed_ns = np.maximum(sums[..., _LAST_NS] - sums[..., _FIRST_NS], 1)
        covered = np.minimum(sums[..., _COVERED_NS] / elapsed_ns, 1.0)
        windows = min(int(sums[..., _COUNT].max(initial=0)), _WINDOWS)
        return np.asarray(median(chosen(self._ratio, rows)[..., :windows]) * covered)

    def pace(self, rows: Ints) -> tuple[Floats, Floats]:
        """(rows,) twice: operations per second, and the seconds over which they were counted.

        By the column that reported most, from its oldest window in memory to its newest.
        """
        column = chosen(self._sums, rows)[..., _COUNT].argmax(axis=1)
        sums = self._sums[rows, column]
        count = np.minimum(sums[:, _COUNT], _WINDOWS)
        oldest = (sums[:, _COUNT] - count) % _WINDOWS
        span_ns = sums[:, _LAST_NS] - self._start_ns[rows, column, oldest]
        known = (count > 0) & (span_ns > 0)
        counted_s = np.where(known, span_ns / 1e9, np.nan)
        return sums[:, _OPERATIONS] / counted_s, counted_s
