"""How busy ranks' launching threads and loader workers were lately, and what ranks read and wrote."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.operations.growable_arrays import roomier
from perfd.aggregator.operations.rank_rows import RankRows
from perfd.analysis.data.job_data import Floats, Ints, LaunchTable
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


class LaunchReadings:
    """The newest readings of each rank."""

    def __init__(self, limits: Limits, counters: AggregatorCounters) -> None:
        self._rows = RankRows(limits, counters, self._begin)
        self._counts: Ints = np.zeros(1, dtype=np.int64)
        self._read_s: Floats = np.zeros(1)
        self._workers: Floats = np.full(1, np.nan)
        self._values: Floats = np.full((1, _READINGS, 4), np.nan)
        """Time, and the counters."""

    def put(self, rank: int, time_unix_s: float, read: Mapping[RankColumn, float], *, read_s: float) -> None:
        """Add one reading of a rank's counters; those that went back begin again, as after a restart.

        `time_unix_s` is by the clock of the rank's node, `read_s` by one that all ranks share.
        """
        *counters, workers = (read.get(column, math.nan) for column in LAUNCH_COLUMNS)
        if not np.isfinite(counters).any():
            return
        row = self._rows.row_of(rank)
        if row is None:
            return
        count = int(self._counts[row])
        if count:
            last = self._values[row, (count - 1) % _READINGS]
            began = math.isnan(last[_BUSY_S]) and not math.isnan(counters[0])
            if began or time_unix_s <= last[_TIME_S] or (counters < last[_BUSY_S:]).any():
                count = 0
        self._values[row, count % _READINGS] = time_unix_s, *counters
        self._counts[row] = count + 1
        self._read_s[row] = read_s
        if not np.isnan(workers):
            # They end before the job does; a rank that had some did not read its data itself.
            self._workers[row] = workers

    def clear(self) -> None:
        """Forget all launches: the job started again."""
        self._rows.clear()

    def table(self, now_s: float) -> LaunchTable | None:
        """Rates over the newest readings, unknown after the first; None without any rank."""
        ranks, rows = self._rows.by_rank()
        kept = (self._counts[rows] > 0) & (now_s - self._read_s[rows] <= _OLDEST_S)
        ranks, rows = ranks[kept], rows[kept]
        if not len(rows):
            return None
        counts = self._counts[rows]
        newest = self._values[rows, (counts - 1) % _READINGS]
        since = [
            self._values[rows, (counts - 1 - np.minimum(one, counts - 1)) % _READINGS] for one in _WINDOWS
        ]
        spans_s = np.stack([newest[:, _TIME_S] - one[:, _TIME_S] for one in since])
        rates = np.stack([newest - one for one in since]) / np.where(spans_s > 0, spans_s, np.nan)[..., None]
        return LaunchTable(
            rank=ranks,
            span_s=spans_s,
            asleep_ratio=np.clip(1 - rates[..., _BUSY_S], 0.0, 1.0),
            loader_busy_ratio=np.clip(rates[..., _LOADER_S] / self._workers[rows], 0.0, 1.0),
            loader_workers=self._workers[rows],
            io_bytes_per_s=np.asarray(rates[..., _IO_BYTES]),
            age_s=np.maximum(0.0, now_s - self._read_s[rows]),
        )

    def _begin(self, row: int) -> None:
        if row == len(self._counts):
            self._counts = roomier(self._counts, (2 * row,))
            self._read_s = roomier(self._read_s, (2 * row,))
            self._workers = roomier(self._workers, (2 * row,))
            self._values = roomier(self._values, (2 * row,))
        self._counts[row], self._read_s[row], self._workers[row] = 0, 0.0, np.nan
