"""What ranks' hosts waited for lately, rank by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.operations.growable_arrays import roomier
from perfd.aggregator.operations.rank_rows import RankRows
from perfd.analysis.data.job_data import Floats, HostWaitTable, Ints
from perfd.analysis.data.robust_stats import median
from perfd.model import RankColumn

HOST_COLUMNS: Sequence[RankColumn] = (
    RankColumn.CPU_WAIT,
    RankColumn.CPU_THROTTLED,
    RankColumn.CPU_DEMAND,
    RankColumn.IO_WAIT,
    RankColumn.MAJOR_FAULTS,
    RankColumn.REMOTE_NUMA,
    RankColumn.OTHERS_CPU,
)
_READINGS = 6
"""Newest readings that a median is of: half a minute at one in five seconds."""
_FEWEST = 2
"""Readings: one alone may be of a moment."""
_OLDEST_S = 60.0
"""A rank without a newer reading has no row."""


class HostWaitReadings:
    """The newest readings of each rank's host."""

    def __init__(self, limits: Limits, counters: AggregatorCounters) -> None:
        self._rows = RankRows(limits, counters, self._begin)
        self._counts: Ints = np.zeros(1, dtype=np.int64)
        self._read_s: Floats = np.zeros(1)
        self._values: Floats = np.full((1, _READINGS, len(HOST_COLUMNS)), np.nan)

    def put(self, rank: int, values: Mapping[str, float], *, read_s: float) -> None:
        """Add one reading of a rank; `read_s` is when it came, by a clock that all ranks share."""
        row = self._rows.row_of(rank)
        if row is None:
            return
        reading = [values.get(column, np.nan) for column in HOST_COLUMNS]
        self._values[row, self._counts[row] % _READINGS] = np.where(np.isfinite(reading), reading, np.nan)
        self._counts[row] += 1
        self._read_s[row] = read_s

    def clear(self) -> None:
        """Forget the waits of all hosts: the job started again."""
        self._rows.clear()

    def table(self, now_s: float) -> HostWaitTable | None:
        """What is usual lately, of ranks that were read twice; None without any."""
        ranks, rows = self._rows.by_rank()
        kept = (self._counts[rows] >= _FEWEST) & (now_s - self._read_s[rows] <= _OLDEST_S)
        if not kept.any():
            return None
        rows = rows[kept]
        values = median(self._values[rows], axis=1)
        newest = self._values[rows, (self._counts[rows] - 1) % _READINGS]
        return HostWaitTable(
            rank=ranks[kept],
            waits={column: values[:, place] for place, column in enumerate(HOST_COLUMNS)},
            newest={column: newest[:, place] for place, column in enumerate(HOST_COLUMNS)},
        )

    def _begin(self, row: int) -> None:
        if row == len(self._counts):
            self._counts = roomier(self._counts, (2 * row,))
            self._read_s = roomier(self._read_s, (2 * row,))
            self._values = roomier(self._values, (2 * row,))
        self._counts[row], self._read_s[row] = 0, 0.0
        self._values[row] = np.nan
