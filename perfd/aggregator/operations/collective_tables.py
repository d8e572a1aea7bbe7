"""The newest collectives of a job, rank beside rank, so that they can be matched."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.operations.collective_buffer import CollectiveBuffer
from perfd.aggregator.operations.growable_arrays import roomier
from perfd.analysis.data.job_data import Bools, CollectiveStack, Ints
from perfd.analysis.layout import PAIR_OPERATION
from perfd.analysis.operations.communicator_waits import BROADCAST, MATCHED_OPERATIONS
from perfd.model import CollectiveTimes, TimingSource

_PAIR = {"Send": 0, "Recv": 1}
_OF_GROUPS = MATCHED_OPERATIONS | {BROADCAST}

_LEFT_AFTER_NS = 900 * 10**9
"""Far more than a step takes, and an evaluation or checkpoint between two."""
_UNTIMED_AFTER_NS = 10 * 10**9
"""The same once NCCL reported wrong times: a communicator without a record has no times any more."""

_Key = tuple[str, str, int, int, TimingSource]
"""Communicator, operation, for a pair the two ranks in it (sender, receiver), else -1, and whose clock:
durations by different clocks cannot be compared."""


class _Row(NamedTuple):
    """Where a communicator is: a row of a buffer."""

    buffer: CollectiveBuffer
    row: int
    columns: int
    """How many ranks it joins."""


class CollectiveRows:
    """Operations by communicator; newer ones take the place of older ones."""

    def __init__(self, limits: Limits, counters: AggregatorCounters) -> None:
        self._limits = limits
        self._counters = counters
        self._buffers: dict[tuple[str, int], CollectiveBuffer] = {}
        """By operation and number of columns."""
        self._rows: dict[_Key, _Row] = {}
        self._columns = 0
        """Of all of them."""
        self._newest_unix_ns: Ints = np.zeros(1, dtype=np.int64)
        """By rank, when it last reported any, by the clock of its node."""
        self._left_after_ns = _LEFT_AFTER_NS

    def __len__(self) -> int:
        """The number of communicators and operations that are known."""
        return len(self._rows)

    def put(self, times: CollectiveTimes) -> None:
        """Add what one rank reported; what cannot be matched is left out."""
        identified = _identified(times)
        if identified is None or not times.sequences:
            return
        if times.rank >= self._limits.ranks_per_job:
            self._counters.rejected["ranks_per_job"] += 1
            return
        key, column, columns = identified
        self._note(times.rank, times.end_unix_ns)
        found = self._rows.get(key) or self._new(key, columns)
        if found is not None and column < found.columns:
            found.buffer.put(found.row, column, times)

    def doubt(self) -> None:
        """Note that NCCL's times are wrong on some communicator: agents drop all its times from then on."""
        self._left_after_ns = _UNTIMED_AFTER_NS

    def clear(self) -> None:
        """Forget all operations: the job started again."""
        self._left_after_ns = _LEFT_AFTER_NS
        self._buffers.clear()
        self._rows.clear()
        self._columns = 0
        self._newest_unix_ns[:] = 0

    def stacks(self) -> list[CollectiveStack]:
        """All communicators that are in use and of which every rank is known; those alike are together."""
        stacks = []
        for buffer in self._buffers.values():
            replaced, renewed = buffer.succession()
            stacks.append(buffer.stack(self._in_use(buffer) & ~replaced, renewed))
        return [stack for stack in stacks if stack is not None]

    def _note(self, rank: int, unix_ns: int) -> None:
        if rank >= len(self._newest_unix_ns):
            known = len(self._newest_unix_ns)
            self._newest_unix_ns = roomier(self._newest_unix_ns, (max(2 * known, 1 + rank),))
            self._newest_unix_ns[known:] = 0
        self._newest_unix_ns[rank] = unix_ns

    def _new(self, key: _Key, columns: int) -> _Row | None:
        if columns > self._limits.ranks_per_job:
            self._counters.rejected["ranks_per_job"] += 1
            return None
        if self._bound(columns) is not None:
            self._drop_left()
        if (bound := self._bound(columns)) is not None:
            self._counters.rejected[bound] += 1
            return None
        communicator, operation, _, _, timing = key
        buffer = self._buffers.get((operation, columns))
        if buffer is None:
            buffer = self._buffers[operation, columns] = CollectiveBuffer(
                operation, columns, starts=operation == PAIR_OPERATION
            )
        self._rows[key] = found = _Row(buffer, buffer.add(communicator, timing), columns)
        self._share(self._columns + columns)
        return found

    def _bound(self, columns: int) -> str | None:
        """The bound that refuses a new communicator of so many ranks, or None."""
        if len(self._rows) >= self._limits.communicators_per_job:
            return "communicators_per_job"
        most = self._limits.communicator_ranks_per_job
        return "communicator_ranks_per_job" if self._columns + columns > most else None

    def _share(self, columns: int) -> None:
        """Give each communicator its part of the memory, now that all together have so many columns."""
        self._columns = columns
        limits = self._limits
        fair = limits.operation_cells_per_job // max(1, columns)
        span = min(limits.operations_per_communicator, max(limits.fewest_operations_per_communicator, fair))
        for (_, width), buffer in self._buffers.items():
            buffer.hold(max(1, min(span, limits.operation_cells_per_communicator // max(1, width))))

    def _in_use(self, buffer: CollectiveBuffer) -> Bools:
        """Which communicators are in use; others are gone, as after a restart of the job."""
        return buffer.in_use(self._newest_unix_ns, self._left_after_ns)

    def _drop_left(self) -> None:
        in_use = {buffer: self._in_use(buffer) for buffer in self._buffers.values()}
        for key, (buffer, row, columns) in list(self._rows.items()):
            if not in_use[buffer][row]:
                buffer.drop(row)
                del self._rows[key]
                self._columns -= columns


def _identified(times: CollectiveTimes) -> tuple[_Key, int, int] | None:
    """Which communicator it is, the rank's column and how many there are; None if ranks cannot be matched."""
    if not times.communicator or times.communicator_rank is None:
        return None
    if times.operation in _OF_GROUPS and times.communicator_size:
        key = (times.communicator, times.operation, -1, -1, times.timing)
        return key, times.communicator_rank, times.communicator_size
    if times.operation in _PAIR and times.peer is not None:
        ends = (times.communicator_rank, times.peer)
        sender, receiver = ends if times.operation == "Send" else ends[::-1]
        key = (times.communicator, PAIR_OPERATION, sender, receiver, times.timing)
        return key, _PAIR[times.operation], 2
    return None
