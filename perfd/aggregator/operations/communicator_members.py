"""Which ranks each communicator joins, when each used it, and so whether it is in use, over or new."""

from __future__ import annotations

import numpy as np

from perfd.aggregator.operations.growable_arrays import roomier
from perfd.analysis.data.job_data import Bools, Ints
from perfd.analysis.data.robust_stats import over_last
from perfd.model import CollectiveTimes

_NEW_NS = 10 * 10**9
"""For how long one is new that took the place of another: a rank that is late for longer is not so by chance.
Chosen."""


class CommunicatorMembers:
    """Of the columns of communicators, (communicators, columns); rows are made with `make_room`.

    Only times by one node's clock are compared: clocks of nodes may disagree by any amount.
    """

    def __init__(self, columns: int) -> None:
        self.ranks: Ints = np.full((1, columns), -1, dtype=np.int64)
        """Global rank of each column; -1 until it reports."""
        self.reported_unix_ns: Ints = np.zeros((1, columns), dtype=np.int64)
        """When each column's rank last reported it, by the clock of its node."""
        self._first_unix_ns: Ints = np.zeros((1, columns), dtype=np.int64)
        """When its first operation began, or had at the earliest, by the same clock; 0 before that."""
        self._last_unix_ns: Ints = np.zeros((1, columns), dtype=np.int64)
        """When its newest one began, or had at the latest."""

    def make_room(self, rows: int) -> None:
        """Have so many rows."""
        self.ranks = roomier(self.ranks, (rows,))
        self.reported_unix_ns = roomier(self.reported_unix_ns, (rows,))
        self._first_unix_ns = roomier(self._first_unix_ns, (rows,))
        self._last_unix_ns = roomier(self._last_unix_ns, (rows,))

    def clear(self, row: int) -> None:
        """Forget who is in a communicator."""
        self.ranks[row] = -1
        self.reported_unix_ns[row] = self._first_unix_ns[row] = self._last_unix_ns[row] = 0

    def put(self, row: int, column: int, times: CollectiveTimes) -> None:
        """Note that a rank reported operations of a communicator."""
        first_ns, last_ns = times.start_unix_ns, times.end_unix_ns
        if times.start_increments_us:
            last_ns = first_ns + 1_000 * sum(times.start_increments_us)
            first_ns += 1_000 * times.start_increments_us[0]
        # A sum of what a record may say can be beyond 64 bits.
        edge = np.iinfo(np.int64)
        first_ns, last_ns = (min(max(edge.min, one), edge.max) for one in (first_ns, last_ns))
        self.ranks[row, column] = times.rank
        self.reported_unix_ns[row, column] = times.end_unix_ns
        self._first_unix_ns[row, column] = self._first_unix_ns[row, column] or first_ns
        self._last_unix_ns[row, column] = last_ns

    def in_use(self, count: int, newest_unix_ns: Ints, left_after_ns: int) -> Bools:
        """Which of the first `count` communicators no rank has left.

        A rank has left if for `left_after_ns` it reports others only; `newest_unix_ns` is when each rank of
        the job last reported any.
        """
        ranks = self.ranks[:count]
        silent_ns = newest_unix_ns[ranks] - self.reported_unix_ns[:count]
        return ~over_last(np.logical_or, (silent_ns > left_after_ns) & (ranks >= 0))

    def succession(self, used: Bools) -> tuple[Bools, Bools]:
        """Which communicators are over, as others of their ranks began later, and which of those are new.

        One is over if it had ended on each of its ranks. One is new for ten seconds, unless what it follows
        are a few operations of a job's start, which is not `used`.
        """
        count = len(used)
        replaced, renewed = np.zeros((2, count), dtype=np.bool_)
        ranks, first, last = (
            array[:count] for array in (self.ranks, self._first_unix_ns, self._last_unix_ns)
        )
        if not over_last(np.logical_and, last <= first.max(axis=0, initial=0)).any():
            # The usual case: all go on.
            return replaced, renewed
        _, group = np.unique(ranks, axis=0, return_inverse=True)
        group = group.reshape(-1)
        in_turn = np.lexsort((first[:, 0], group))
        newest = np.zeros(count, dtype=np.int64)
        newest[group[in_turn]] = in_turn
        other = newest[group]
        ended = (first[other] >= last).all(axis=1)
        replaced = np.asarray(ended & (other != np.arange(count)) & (ranks.min(axis=1) >= 0))
        renewed[other[replaced & used]] = True
        return replaced, renewed & ((last - first).max(axis=1, initial=0) < _NEW_NS)
