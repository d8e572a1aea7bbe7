"""What the counters of time in NCCL said lately, rank by rank."""

from __future__ import annotations

import math

import numpy as np

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.operations.growable_arrays import roomier
from perfd.aggregator.operations.rank_rows import RankRows
from perfd.analysis.data.job_data import Floats, Ints, NcclTimeTable
from perfd.analysis.data.robust_stats import median

_WINDOWS = 64
"""Readings in memory per rank."""
_STRETCHES = 8
"""Between readings, the newest, of which a share is the median."""
_LAST_TIME_S, _LAST_BUSY_S, _LAST_LOST, _LAST_OPERATIONS, _SINCE_S, _READ_S = range(6)


class NcclTimeCounters:
    """What each rank's counters of time in NCCL said lately."""

    def __init__(self, limits: Limits, counters: AggregatorCounters) -> None:
        self._rows = RankRows(limits, counters, self._begin)
        self._counts: Ints = np.empty(1, dtype=np.int64)
        """Readings since the counters began, by row."""
        self._time_s: Floats = np.empty((_WINDOWS, 1))
        """One column per rank; the newest readings take the place of the oldest."""
        self._busy_s: Floats = np.empty((_WINDOWS, 1))
        self._lost: Floats = np.empty((_WINDOWS, 1))
        self._newest: Floats = np.empty((1, 6))
        """The newest reading: time, time in kernels, lost operations, operations, since when those are so
        many, and its time by our clock."""

    def put(
        self,
        rank: int,
        time_unix_s: float,
        busy_s: float,
        lost: float,
        operations: float = math.nan,
        *,
        read_s: float = 0.0,
    ) -> None:
        """Add one reading of a rank's counters.

        A counter that went back begins again, as after a restart, and so does one that stops or begins to
        report the time in kernels. `time_unix_s` is by the clock of the rank's node, `read_s` by one that all
        ranks share.
        """
        row = self._rows.row_of(rank)
        if row is None:
            return
        count, since_s = int(self._counts[row]), time_unix_s
        if count:
            last_s, last_busy_s, _, last_operations, last_since_s, _ = self._newest[row].tolist()
            changed = math.isnan(busy_s) != math.isnan(last_busy_s)
            if changed or busy_s < last_busy_s or operations < last_operations or time_unix_s <= last_s:
                count = 0
            elif operations == last_operations:
                since_s = last_since_s
        place = count % _WINDOWS, row
        self._time_s[place], self._busy_s[place], self._lost[place] = time_unix_s, busy_s, lost
        self._newest[row] = time_unix_s, busy_s, lost, operations, since_s, read_s
        self._counts[row] = count + 1

    def clear(self) -> None:
        """Forget all counters: the job started again."""
        self._rows.clear()

    def table(self) -> NcclTimeTable:
        """What is usual between the oldest reading and the newest, of ranks that have two, by rank."""
        ranks, rows = self._rows.by_rank()
        read_twice = self._counts[rows] > 1
        ranks, rows = ranks[read_twice], rows[read_twice]
        newest, counts = self._newest[rows], self._counts[rows]
        operations = newest[:, _LAST_OPERATIONS]
        oldest = np.where(counts > _WINDOWS, counts % _WINDOWS, 0)
        span_s = newest[:, _LAST_TIME_S] - self._time_s[oldest, rows]
        usual, lately = self._ratios(rows)
        return NcclTimeTable(
            rank=ranks,
            busy_s=usual * span_s,
            span_s=span_s,
            lost_operations=(newest[:, _LAST_LOST] - self._lost[oldest, rows]).astype(np.int64),
            operations=np.where(np.isfinite(operations), operations, np.nan),
            still_s=newest[:, _LAST_TIME_S] - newest[:, _SINCE_S],
            read_s=newest[:, _READ_S],
            lately_ratio=lately,
        )

    def _begin(self, row: int) -> None:
        if row == len(self._counts):
            self._counts = roomier(self._counts, (2 * row,))
            self._time_s = roomier(self._time_s, (_WINDOWS, 2 * row))
            self._busy_s = roomier(self._busy_s, (_WINDOWS, 2 * row))
            self._lost = roomier(self._lost, (_WINDOWS, 2 * row))
            self._newest = roomier(self._newest, (2 * row,))
        self._counts[row] = 0

    def _ratios(self, rows: Ints) -> tuple[Floats, Floats]:
        """The share of time in the usual stretch, the median of eight, and in the newest one.

        As for operations, starting up does not count; and a stretch is longer than most steps, whose
        communication may be all at their end.
        """
        usual, lately = np.empty(len(rows)), np.empty(len(rows))
        counts = self._counts[rows]
        phases = np.where(counts > _WINDOWS, _WINDOWS + counts % _WINDOWS, counts)
        for phase in np.unique(phases).tolist():
            # Ranks that were read as often have their readings in the same places.
            alike = np.flatnonzero(phases == phase)
            readings, oldest = min(phase, _WINDOWS), max(0, phase - _WINDOWS)
            stretches = min(_STRETCHES, readings - 1)
            bounds = np.linspace(0, readings - 1, 1 + stretches).round().astype(np.int64)
            windows = np.ix_((oldest + bounds) % _WINDOWS, rows[alike])
            ratios = np.diff(self._busy_s[windows], axis=0) / np.diff(self._time_s[windows], axis=0)
            usual[alike], lately[alike] = median(ratios, axis=0), ratios[-1]
        return usual, lately
