"""Which row of a table's arrays is which rank's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.analysis.data.job_data import Ints


class RankRows:
    """Rows of ranks in the order in which these came, for as many as a job may have."""

    def __init__(self, limits: Limits, counters: AggregatorCounters, begin: Callable[[int], None]) -> None:
        """`begin` is called with each new row, the lowest free one, before anything is written to it."""
        self._limits = limits
        self._counters = counters
        self._begin = begin
        self._rows: dict[int, int] = {}

    def row_of(self, rank: int) -> int | None:
        """The row of a rank, new if it has none; None beyond the job's limit of ranks, which is counted."""
        row = self._rows.get(rank)
        if row is None:
            if max(rank, len(self._rows)) >= self._limits.ranks_per_job:
                self._counters.rejected["ranks_per_job"] += 1
                return None
            row = len(self._rows)
            self._begin(row)
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
