"""What ranks' hosts waited for lately, rank by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.operations.growable_arrays import RankRows
from perfd.analysis.data.job_data import HostWaitTable
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


_BLANK = np.array(
    (0, 0.0, np.full((_READINGS, len(HOST_COLUMNS)), np.nan)),
    [("count", "i8"), ("came_s", "f8"), ("values", "f8", (_READINGS, len(HOST_COLUMNS)))],
)


class HostWaitReadings(RankRows):
    """The newest readings of each rank's host."""

    def __init__(self, limits: Limits, counters: AggregatorCounters) -> None:
        super().__init__(limits, counters, _BLANK)

    def put(self, rank: int, values: Mapping[str, float], *, read_s: float) -> None:
        """Add one reading of a rank; `read_s` is when it came, by a clock that all ranks share."""
        row = self.row_of(rank)
        if row is None:
            return
        record, reading = self.records[row], [values.get(column, np.nan) for column in HOST_COLUMNS]
        record["values"][record["count"] % _READINGS] = np.where(np.isfinite(reading), reading, np.nan)
        record["count"] += 1
        record["came_s"] = read_s

    def table(self, now_s: float) -> HostWaitTable | None:
        """What is usual lately, of ranks that were read twice; None without any."""
        ranks, rows = self.by_rank()
        counts, read_s = self.records["count"][rows], self.records["came_s"][rows]
        kept = (counts >= _FEWEST) & (now_s - read_s <= _OLDEST_S)
        if not kept.any():
            return None
        counts, readings = counts[kept], self.records["values"][rows[kept]]
        values = median(readings, axis=1)
        newest = readings[np.arange(len(readings)), (counts - 1) % _READINGS]
        return HostWaitTable(
            rank=ranks[kept],
            waits={column: values[:, place] for place, column in enumerate(HOST_COLUMNS)},
            newest={column: newest[:, place] for place, column in enumerate(HOST_COLUMNS)},
        )
