"""A record for each rank of a job."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.operations.growable_arrays import roomier
from perfd.analysis.data.job_data import Ints


class RankRows:
    """Records of ranks in the order in which these came, for as many as a job may have."""

    def __init__(self, limits: Limits, counters: AggregatorCounters, blank: NDArray[Any]) -> None:
        """`blank` is what a new rank's record holds, with named fields."""
        self._limits = limits
        self._counters = counters
        self._blank = blank
        self._rows: dict[int, int] = {}
        self.records: NDArray[Any] = np.array([blank])
        """One for each row; those of rows without a rank mean nothing."""

    def row_of(self, rank: int) -> int | None:
        """The row of a rank, new if it has none; None beyond the job's limit of ranks, which is counted."""
        row = self._rows.get(rank)
        if row is None:
            if max(rank, len(self._rows)) >= self._limits.ranks_per_job:
                self._counters.rejected["ranks_per_job"] += 1
                return None
            row = len(self._rows)
            if row == len(self.records):
                self.records = roomier(self.records, (2 * row,))
            self.records[row] = self._blank
            self._rows[rank] = row
        return row

    def clear(self) -> None:
        """Forget all ranks: the job started again."""
        self._rows.clear()

    def by_rank(self) -> tuple[Ints, Ints]:
        """All ranks in their order, and their rows."""
        ranks = np.fromiter(self._rows, np.int64, len(self._rows))
        rows = np.fromiter(self._rows.values(), np.int64, len(self._rows))
        order = np.argsort(ranks)
        return ranks[order], rows[order]
