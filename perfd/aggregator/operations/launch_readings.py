"""How busy ranks' launching threads and loader workers were lately, and what ranks read and wrote."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.operations.growable_arrays import RankRows
from perfd.analysis.data.job_data import LaunchTable
from perfd.model import RankColumn

LAUNCH_COLUMNS = (
    RankColumn.LAUNCH_BUSY, RankColumn.LOADER_BUSY, RankColumn.IO, RankColumn.LOADER_WORKERS,
)  # fmt: skip
"""Counters, and the number of workers."""

_READINGS = 64
"""In memory per rank: a minute at one a second."""
_WINDOWS = (2, 4, 10, 60)
"""How many of the newest readings a rate is over."""
_OLDEST_S = 30.0
"""A rank without a newer reading has no row."""
_TIME_S, _BUSY_S, _LOADER_S, _IO_BYTES = range(4)


_BLANK = np.array(
    (0, 0.0, np.nan, np.full((_READINGS, 4), np.nan)),
    [("count", "i8"), ("came_s", "f8"), ("workers", "f8"), ("values", "f8", (_READINGS, 4))],
)
"""The values are time, and the counters."""


class LaunchReadings(RankRows):
    """The newest readings of each rank."""

    def __init__(self, limits: Limits, counters: AggregatorCounters) -> None:
        super().__init__(limits, counters, _BLANK)

    def put(self, rank: int, time_unix_s: float, read: Mapping[RankColumn, float], *, read_s: float) -> None:
        """Add one reading of a rank's counters; those that went back begin again, as after a restart.

        `time_unix_s` is by the clock of the rank's node, `read_s` by one that all ranks share.
        """
        *counters, workers = (read.get(column, math.nan) for column in LAUNCH_COLUMNS)
        if not np.isfinite(counters).any():
            return
        row = self.row_of(rank)
        if row is None:
            return
        record = self.records[row]
        count, values = int(record["count"]), record["values"]
        if count:
            last = values[(count - 1) % _READINGS]
            began = math.isnan(last[_BUSY_S]) and not math.isnan(counters[0])
            if began or time_unix_s <= last[_TIME_S] or (counters < last[_BUSY_S:]).any():
                count = 0
        values[count % _READINGS] = time_unix_s, *counters
        record["count"] = count + 1
        record["came_s"] = read_s
        if not np.isnan(workers):
            # They end before the job does; a rank that had some did not read its data itself.
            record["workers"] = workers

    def table(self, now_s: float) -> LaunchTable | None:
        """Rates over the newest readings, unknown after the first; None without any rank."""
        ranks, rows = self.by_rank()
        kept = (self.records["count"][rows] > 0) & (now_s - self.records["came_s"][rows] <= _OLDEST_S)
        ranks, rows = ranks[kept], rows[kept]
        if not len(rows):
            return None
        counts, workers, values = (self.records[name] for name in ("count", "workers", "values"))
        counts, workers = counts[rows], workers[rows]
        newest = values[rows, (counts - 1) % _READINGS]
        since = [values[rows, (counts - 1 - np.minimum(one, counts - 1)) % _READINGS] for one in _WINDOWS]
        spans_s = np.stack([newest[:, _TIME_S] - one[:, _TIME_S] for one in since])
        rates = np.stack([newest - one for one in since]) / np.where(spans_s > 0, spans_s, np.nan)[..., None]
        return LaunchTable(
            rank=ranks,
            span_s=spans_s,
            asleep_ratio=np.clip(1 - rates[..., _BUSY_S], 0.0, 1.0),
            loader_busy_ratio=np.clip(rates[..., _LOADER_S] / workers, 0.0, 1.0),
            loader_workers=workers,
            io_bytes_per_s=np.asarray(rates[..., _IO_BYTES]),
            age_s=np.maximum(0.0, now_s - self.records["came_s"][rows]),
        )
