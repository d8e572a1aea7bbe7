"""What the counters of time in NCCL said lately, rank by rank."""

from __future__ import annotations

import math

import numpy as np

from perfd.aggregator.limits import Counters, Limits
from perfd.aggregator.rooms import roomier
from perfd.analysis.tables import Floats, Ints, NcclTimeTable

_WINDOWS = 64
"""Readings in memory per rank."""
_STRETCHES = 8
_TIME_S, _BUSY_S = range(2)
_LAST_TIME_S, _LAST_BUSY_S, _LAST_LOST, _LAST_OPERATIONS, _SINCE_S = range(5)


class NcclTimes:
    """What each rank's counters of time in NCCL said lately."""

    def __init__(self, limits: Limits, counters: Counters) -> None:
        self._limits = limits
        self._counters = counters
        self._rows: dict[int, int] = {}
        """By rank."""
        self._counts: Ints = np.empty(1, dtype=np.int64)
        """Readings of each since its counters began."""
        self._readings: Floats = np.empty((1, _WINDOWS, 2))
        """Time and time in kernels; the newest take the place of the oldest."""
        self._lost: Floats = np.empty((1, _WINDOWS))
        self._newest: Floats = np.empty((1, 5))
        """The newest reading: time, time in kernels, lost operations, operations, and since when those are so
        many."""

    def put(
        self, rank: int, time_unix_s: float, busy_s: float, lost: float, operations: float = math.nan
    ) -> None:
        """Add one reading of a rank's counters; one that went back starts afresh, as after a restart."""
        row = self._rows.get(rank)
        if row is None:
            if len(self._rows) >= self._limits.ranks_per_job:
                self._counters.rejected["ranks_per_job"] += 1
                return
            row = self._new(rank)
        count, since_s = int(self._counts[row]), time_unix_s
        if count:
            last_s, last_busy_s, _, last_operations, last_since_s = self._newest[row].tolist()
            if busy_s < last_busy_s or operations < last_operations or time_unix_s <= last_s:
                count = 0
            elif operations == last_operations:
                since_s = last_since_s
        self._readings[row, count % _WINDOWS] = time_unix_s, busy_s
        self._lost[row, count % _WINDOWS] = lost
        self._newest[row] = time_unix_s, busy_s, lost, operations, since_s
        self._counts[row] = count + 1

    def clear(self) -> None:
        """Forget everything: the job started again."""
        self._rows.clear()

    def table(self) -> NcclTimeTable:
        """What is usual between the oldest reading and the newest, of ranks that have two, by rank."""
        ranks = np.array(sorted(self._rows), dtype=np.int64)
        rows = np.array([self._rows[rank] for rank in ranks.tolist()], dtype=np.int64)
        enough = self._counts[rows] > 1
        ranks, rows = ranks[enough], rows[enough]
        newest, counts = self._newest[rows], self._counts[rows]
        operations = newest[:, _LAST_OPERATIONS]
        oldest = np.where(counts > _WINDOWS, counts % _WINDOWS, 0)
        span_s = newest[:, _LAST_TIME_S] - self._readings[rows, oldest, _TIME_S]
        return NcclTimeTable(
            rank=ranks,
            busy_s=self._usual_ratio(rows) * span_s,
            span_s=span_s,
            lost_operations=(newest[:, _LAST_LOST] - self._lost[rows, oldest]).astype(np.int64),
            operations=np.where(np.isfinite(operations), operations, np.nan),
            still_s=newest[:, _LAST_TIME_S] - newest[:, _SINCE_S],
            read_unix_s=newest[:, _LAST_TIME_S],
        )

    def _new(self, rank: int) -> int:
        row = self._rows[rank] = len(self._rows)
        if row == len(self._counts):
            self._counts = roomier(self._counts, (2 * row,))
            self._readings = roomier(self._readings, (2 * row,))
            self._lost = roomier(self._lost, (2 * row,))
            self._newest = roomier(self._newest, (2 * row,))
        self._counts[row] = 0
        return row

    def _usual_ratio(self, rows: Ints) -> Floats:
        """The share of time in the usual stretch, the median of eight.

        As for operations, starting up does not count; and a stretch is longer than most steps, whose
        communication may be all at their end.
        """
        usual = np.empty(len(rows))
        counts = self._counts[rows]
        held = np.minimum(counts, _WINDOWS)
        for readings in np.unique(held).tolist():
            alike = np.flatnonzero(held == readings)
            stretches = min(_STRETCHES, readings - 1)
            bounds = np.linspace(0, readings - 1, 1 + stretches).round().astype(np.int64)
            first = np.where(counts[alike] > _WINDOWS, counts[alike] % _WINDOWS, 0)
            places = (first[:, None] + bounds) % _WINDOWS
            told = np.diff(self._readings[rows[alike][:, None], places], axis=1)
            ratios = np.sort(told[..., _BUSY_S] / told[..., _TIME_S], axis=1)
            usual[alike] = (ratios[:, (stretches - 1) // 2] + ratios[:, stretches // 2]) / 2
        return usual
