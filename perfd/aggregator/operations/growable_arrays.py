"""Arrays with room for more than they hold, and a record for each rank of a job in such."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.analysis.data.job_data import Floats, Ints

_Number = TypeVar("_Number", bound=np.generic)


def roomier(array: NDArray[_Number], shape: tuple[int, ...]) -> NDArray[_Number]:
    """The array with longer first axes; what is new has no value yet."""
    larger = np.empty((*shape, *array.shape[len(shape) :]), dtype=array.dtype)
    larger[tuple(slice(length) for length in array.shape)] = array
    return larger


def chosen(array: NDArray[_Number], rows: Ints) -> NDArray[_Number]:
    """These rows, which are in order, of an array; not a copy where they are the first ones."""
    return array[: len(rows)] if len(rows) and rows[-1] == len(rows) - 1 else array[rows]


class NewestColumns:
    """The newest values of several columns, at most `most` of each."""

    def __init__(self, columns: int, most: int) -> None:
        self._most = most
        self._values: Floats = np.empty((columns, 0))
        self._first = self._end = 0

    @property
    def held(self) -> Floats:
        """(columns, n), newest last; valid until the next `put`."""
        return self._values[:, self._first : self._end]

    def put(self, values: Floats) -> None:
        """Append (columns, n) values."""
        values = values[:, -self._most :]
        end = self._end + values.shape[1]
        if end > self._values.shape[1]:
            held = self.held[:, -self._most :]
            # Doubling keeps the cost of copying per value constant.
            grown = np.empty((len(values), min(2 * self._most, 2 * (held.shape[1] + values.shape[1]))))
            grown[:, : held.shape[1]] = held
            self._values, self._first = grown, 0
            end = held.shape[1] + values.shape[1]
        self._values[:, end - values.shape[1] : end] = values
        self._end = end
        self._first = max(self._first, end - self._most)

    def clear(self) -> None:
        """Forget all."""
        self._first = self._end = 0


class RankRows:
    """Records of ranks in the order in which these came, for as many as a job may have."""

    def __init__(self, limits: Limits, counters: AggregatorCounters, blank: NDArray[Any]) -> None:
        """`blank` is what a new rank's record holds, with named fields."""
        self._limits = limits
        self._counters = counters
        self._blank = blank
        self._rows: dict[int, int] = {}
        self._ranks: Ints = np.zeros(1, dtype=np.int64)
        """Of each row."""
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
                self.records, self._ranks = (roomier(one, (2 * row,)) for one in (self.records, self._ranks))
            self.records[row], self._ranks[row] = self._blank, rank
            self._rows[rank] = row
        return row

    def clear(self) -> None:
        """Forget all ranks: the job started again."""
        self._rows.clear()

    def ranks(self) -> Ints:
        """The rank of each row."""
        return self._ranks[: len(self._rows)].copy()

    def by_rank(self) -> tuple[Ints, Ints]:
        """All ranks in their order, and their rows."""
        ranks = self.ranks()
        rows = np.argsort(ranks)
        return ranks[rows], rows
