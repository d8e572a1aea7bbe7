"""What the counters of time in NCCL said lately, rank by rank."""

from __future__ import annotations

import math

import numpy as np

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.operations.growable_arrays import RankRows, chosen, roomier
from perfd.analysis.data.job_data import Floats, Ints, NcclTimeTable
from perfd.analysis.data.robust_stats import median

_WINDOWS = 64
"""Readings in memory per rank."""
_STRETCHES = 8
"""Between readings, the newest, of which a share is the median."""
_LAST_TIME_S, _LAST_BUSY_S, _LAST_LOST, _LAST_OPERATIONS, _SINCE_S, _READ_S = range(6)


_BLANK = np.zeros((), [("count", "i8"), ("newest", "f8", (6,))])
"""Readings since the counters began, and the newest one: time, time in kernels, lost operations, operations,
since when those are so many, and its time by our clock."""


class NcclTimeCounters(RankRows):
    """What each rank's counters of time in NCCL said lately."""

    def __init__(self, limits: Limits, counters: AggregatorCounters) -> None:
        super().__init__(limits, counters, _BLANK)
        self._readings: Floats = np.empty((3, _WINDOWS, 1))
        """Time, time in kernels and lost operations of each row's last readings, of which the newest take the
        place of the oldest. Those of all rows are side by side, because a look needs only some readings."""

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
        row = self.row_of(rank)
        if row is None:
            return
        record = self.records[row]
        count, since_s, lost_before = int(record["count"]), time_unix_s, lost
        if count:
            last_s, last_busy_s, _, last_operations, last_since_s, _ = record["newest"].tolist()
            changed = math.isnan(busy_s) != math.isnan(last_busy_s)
            began_again = busy_s < last_busy_s or operations < last_operations
            if began_again:
                # Everything it has lost, it lost since then.
                lost_before = 0.0
            if changed or began_again or time_unix_s <= last_s:
                count = 0
            elif operations == last_operations:
                since_s = last_since_s
        if row >= self._readings.shape[2]:
            self._readings = roomier(self._readings, (3, _WINDOWS, len(self.records)))
        self._readings[:, count % _WINDOWS, row] = time_unix_s, busy_s, lost_before
        record["newest"] = time_unix_s, busy_s, lost, operations, since_s, read_s
        record["count"] = count + 1

    def table(self) -> NcclTimeTable:
        """What is usual between the oldest reading and the newest, of ranks that have two, by rank."""
        ranks = self.ranks()
        rows = np.flatnonzero(self.records["count"][: len(ranks)] > 1)
        newest, counts = self.records["newest"][rows], self.records["count"][rows]
        operations = newest[:, _LAST_OPERATIONS]
        first_s, _, first_lost = self._readings[:, np.where(counts > _WINDOWS, counts % _WINDOWS, 0), rows]
        span_s = newest[:, _LAST_TIME_S] - first_s
        usual, lately = self._ratios(rows, counts)
        # Row by row until here: to put a few columns in order costs less than to put all readings.
        return NcclTimeTable(
            rank=ranks[rows],
            busy_s=usual * span_s,
            span_s=span_s,
            lost_operations=(newest[:, _LAST_LOST] - first_lost).astype(np.int64),
            operations=np.where(np.isfinite(operations), operations, np.nan),
            still_s=newest[:, _LAST_TIME_S] - newest[:, _SINCE_S],
            read_s=newest[:, _READ_S],
            lately_ratio=lately,
        ).rows(np.argsort(ranks[rows]))

    def _ratios(self, rows: Ints, counts: Ints) -> tuple[Floats, Floats]:
        """The share of time in the usual stretch, the median of eight, and in the newest one.

        As for operations, starting up does not count; and a stretch is longer than most steps, whose
        communication may be all at their end.
        """
        usual, lately = np.empty(len(rows)), np.empty(len(rows))
        phases = np.where(counts > _WINDOWS, _WINDOWS + counts % _WINDOWS, counts)
        for phase in np.flatnonzero(np.bincount(phases)).tolist():
            # Ranks that were read as often have their readings in the same places.
            alike = np.flatnonzero(phases == phase)
            readings, oldest = min(phase, _WINDOWS), max(0, phase - _WINDOWS)
            stretches = min(_STRETCHES, readings - 1)
            bounds = np.linspace(0, readings - 1, 1 + stretches).round().astype(np.int64)
            at_bounds = self._readings[:2, (oldest + bounds) % _WINDOWS].transpose(2, 0, 1)
            spans_s, busy_s = np.diff(chosen(at_bounds, rows[alike])).transpose(1, 0, 2)
            ratios = busy_s / spans_s
            usual[alike], lately[alike] = median(ratios, axis=1), ratios[:, -1]
        return usual, lately
