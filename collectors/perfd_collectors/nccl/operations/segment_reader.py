"""Reads one process's segment and reduces its operations to records once per window."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfd.errors import Unavailable
from perfd.model import Event, EventKind, Record, SampleTable, Scope
from perfd_collectors.nccl.operations.operation_columns import RECORD, Operations, check_times
from perfd_collectors.nccl.operations.window_reduction import (
    GpuClock,
    GpuClockReadings,
    OperationWindow,
    busy_ns,
    keep_one_in,
    reduce_operations,
)
from perfd_collectors.nccl.sampling import BusyTime
from perfd_collectors.nccl.segment_progress import RankTotals, SegmentProgress
from perfd_collectors.nccl.segments import (
    FUNCTIONS,
    Communicator,
    ProcessInfo,
    ProcessRanks,
    RecordingMode,
    Segment,
)

_AFTER_BROADCAST = " NCCL 2.32 does so after a Broadcast: try NCCL_ALLGATHERV_ENABLE=0."
_NEWEST_INTERFACE = 6
"""That of NCCL 2.29 and newer: an older one is not NCCL 2.32."""
_MAX_RECORDS_PER_READ = 65_536
"""Records of one process per read: 3 s at 20,000 operations per second, for which ring buffers are sized."""
_KNOWN_NONE = np.zeros(1 << 16, dtype=bool)
"""By the index of a communicator, which has 16 bits in a record."""
_UNREAD_SHARE = 1 / 8
"""Of a ring buffer, how much may stay unread between reports: few large reads cost less than many small ones.
The rest is room for a late agent. Chosen, not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """New operations, oldest first within each ring buffer, and how many were overwritten unread."""

    operations: Operations
    lost: int


class RingBuffers:
    """The ring buffers of an open segment."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._positions: dict[int, int] = {}

    @property
    def positions(self) -> Mapping[int, int]:
        """How many records were read or lost, by ring buffer."""
        return dict(self._positions)

    def resume(self, positions: Mapping[int, int]) -> None:
        """Continue at the positions of an earlier reader; positions beyond what was written are ignored."""
        for ring, position in positions.items():
            if 0 <= ring < self._segment.rings() and 0 <= position <= self._segment.written(ring):
                self._positions[ring] = position

    def read(self, *, waiting: int = 0) -> Reading:
        """The operations recorded since the last call, up to a bound; the rest comes with the next call.

        Ring buffers with at most `waiting` new ones are left for a later call.
        """
        parts: list[Operations] = []
        lost = 0
        for ring in range(self._segment.rings()):
            lost += self._read_ring(ring, waiting, parts)
        return Reading(operations=Operations.joined(parts), lost=lost)

    def _read_ring(self, ring: int, waiting: int, into: list[Operations]) -> int:
        """Append a ring buffer's new records to `into`; returns how many were overwritten unread."""
        position, written = self._positions.get(ring, 0), self._segment.written(ring)
        if written <= position + waiting:
            return 0
        entries = self._segment.entries
        first = max(position, written - entries + 1)
        end = min(written, first + max(0, _MAX_RECORDS_PER_READ - sum(map(len, into))))
        records = self._records(ring, first, end)
        oldest = self._segment.written(ring) - entries + 1
        # Numbers as the plugin writes them: what is at a place has another one before and after.
        numbers = np.arange(len(records), dtype=np.uint64)
        whole = records["sequence"] - np.uint64((first + 1) % (1 << 64)) == numbers
        whole[: max(0, oldest - first)] = False
        found = Operations(records if whole.all() else records[whole])
        if len(found):
            into.append(found)
        self._positions[ring] = end
        return end - position - len(found)

    def _records(self, ring: int, first: int, end: int) -> npt.NDArray[np.void]:
        """Records by number, straight from the file; fewer where that was cut.

        The process may overwrite the oldest meanwhile.
        """
        records = np.empty(end - first, RECORD)
        offset, until_wrap = self._segment.place(ring, first)
        start, _ = self._segment.place(ring, 0)
        whole = _filled(self._segment, records[:until_wrap], offset)
        if whole == until_wrap < len(records):
            whole += _filled(self._segment, records[until_wrap:], start)
        return records[:whole]


class SegmentReader:
    """Reads an open segment. `progress` is where an earlier agent stopped; None: nowhere yet."""

    def __init__(self, segment: Segment, now_unix_ns: int, progress: SegmentProgress | None) -> None:
        self.file = segment.identity()
        self._segment = segment
        self._rings = RingBuffers(segment)
        self._recording = RecordingMode.GPU_TIME in segment.recording_mode()
        self._pending: list[Operations] = []
        self._mistimed: set[int] = set()
        """Live communicators whose GPU times are those of other operations."""
        self._partly_timed = False
        """Whether there was one since the last report: then the total time in kernels is unknown."""
        self._ranks: dict[int, RankTotals] = {}
        self._clocks: dict[int, GpuClockReadings] = {}
        """By rank."""
        if progress is None:
            self._lost = self._untimed = 0
        else:
            self._rings.resume(progress.positions)
            self._lost, self._untimed, self._ranks = progress.lost, progress.untimed, dict(progress.ranks)
        first = self.read()
        self._reported_unix_ns = min(now_unix_ns, self._begun_unix_ns(first, progress, now_unix_ns))

    def read(self, *, only_filling: bool = False) -> Reading:
        """Read new operations; with `only_filling`, as between reports, of ring buffers that fill up."""
        waiting = int(self._segment.entries * _UNREAD_SHARE) if only_filling else 0
        reading = self._rings.read(waiting=waiting)
        if len(reading.operations):
            self._pending.append(reading.operations)
        self._lost += reading.lost
        return reading

    def report(
        self,
        job: str,
        now_unix_ns: int,
        max_operations_per_s: int,
        ranks: ProcessRanks,
    ) -> list[Record]:
        """Records of the operations read since the last report, by the ranks of the process."""
        start_unix_ns, self._reported_unix_ns = self._reported_unix_ns, now_unix_ns
        operations, self._pending = Operations.joined(self._pending), []
        communicators = {one.index: one for one in self._segment.communicators()}
        newly_mistimed, operations = self._check_times(operations)
        self._partly_timed = bool(self._mistimed)
        self._mistimed &= {one.index for one in communicators.values() if one.live}
        self._untimed += int(np.count_nonzero(operations.timed & ~operations.measured))
        keep = keep_one_in(len(operations), now_unix_ns - start_unix_ns, max_operations_per_s)
        by_rank = _by_rank(operations, ranks)
        self._count(by_rank)
        records: list[Record] = []
        for rank, own in by_rank.items():
            window = OperationWindow(
                job=job,
                rank=rank,
                start_unix_ns=start_unix_ns,
                end_unix_ns=now_unix_ns,
                clock=self._clock(rank, own),
            )
            records += reduce_operations(own, communicators, window, keep_one_in=keep)
            records.append(self._totals(window, len(by_rank)))
            records += (
                self._mistimed_event(window, functions, communicators.get(index))
                for index, functions in newly_mistimed.items()
                if ranks.communicators.get(index) == rank
            )
        return records

    @property
    def process(self) -> ProcessInfo:
        """The process that writes the segment."""
        return self._segment.process

    def communicators(self) -> tuple[Communicator, ...]:
        """The process's communicators, live and finalized."""
        return self._segment.communicators()

    def _clock(self, rank: int, operations: Operations) -> GpuClock | None:
        to_monotonic_ns = self._clocks.setdefault(rank, GpuClockReadings()).add(operations)
        process = self._segment.process
        if to_monotonic_ns is None:
            return None
        return GpuClock(to_monotonic_ns, process.unix_ns - process.monotonic_ns)

    def _count(self, by_rank: Mapping[int, Operations]) -> None:
        """Share what was started since the last time among the ranks, by the records of each."""
        started = self._segment.counters().started
        new = max(0, started - sum(one.operations for one in self._ranks.values()))
        recorded = sum(map(len, by_rank.values()))
        left = new
        for place, (rank, own) in enumerate(by_rank.items()):
            share = left if place == len(by_rank) - 1 else new * len(own) // max(1, recorded)
            left -= share
            if rank not in self._ranks:
                # Of the operations before, only those that were still in the ring buffers are known.
                self._ranks[rank] = RankTotals(busy=BusyTime(begun=max(0, share - len(own))))
            totals = self._ranks[rank]
            totals.operations += share
            totals.busy.add(busy_ns(own), totals.operations, recording=self._recording)

    def _check_times(self, operations: Operations) -> tuple[dict[int, set[int]], Operations]:
        """Functions of newly mistimed communicators, and the operations without wrong times."""
        communicator, function = operations.column("communicator"), operations.column("function")
        check = check_times(operations)
        newly = {
            index: set(function[communicator == index].tolist())
            for index in check.communicators - self._mistimed
        }
        self._mistimed |= check.communicators
        self._untimed += check.wrong
        if not self._mistimed:
            return newly, check.operations
        wrong = check.operations.timed & np.isin(communicator, sorted(self._mistimed))
        self._untimed += int(np.count_nonzero(wrong))
        return newly, check.operations.without_times(wrong)

    def switch(self, mode: RecordingMode) -> None:
        """Set what the plugin records from now on, unless another reader controls the segment."""
        if self._segment.take_control() and self._segment.recording_mode() != mode:
            self._segment.set_recording_mode(mode)
        self._recording = RecordingMode.GPU_TIME in self._segment.recording_mode()

    def progress(self) -> SegmentProgress:
        """Up to where the segment was reported."""
        return SegmentProgress(
            positions=dict(self._rings.positions),
            reported_unix_ns=self._reported_unix_ns,
            lost=self._lost,
            untimed=self._untimed,
            ranks=self._ranks,
        )

    def close(self) -> None:
        """Close the segment; legal twice."""
        self._segment.close()

    def _begun_unix_ns(self, first: Reading, progress: SegmentProgress | None, now_unix_ns: int) -> int:
        """Since when all operations are known: they may be older than the moment they were read."""
        reported_unix_ns = 0 if progress is None else progress.reported_unix_ns
        if progress is not None and not first.lost:
            return reported_unix_ns
        process = self._segment.process
        ended = ~first.operations.incomplete
        if not ended.any():
            return now_unix_ns
        oldest_ns = int(first.operations.column("complete_monotonic_ns")[ended].min())
        return max(reported_unix_ns, process.unix_ns + oldest_ns - process.monotonic_ns)

    def _totals(self, window: OperationWindow, ranks: int) -> SampleTable:
        """The counters of one rank; what was lost is known only of the process, and divided by its ranks."""
        counters = self._segment.counters()
        totals = self._ranks[window.rank]
        whole = self._segment.process.profiler_version >= 4 and not self._partly_timed
        busy_s = totals.busy.total_s if whole else None
        return SampleTable(
            scope=Scope.RANK,
            times_unix_ns=[window.end_unix_ns],
            entities=[f"{window.job}/{window.rank}"],
            columns={
                "nccl_busy_s": [math.nan if busy_s is None else busy_s],
                "nccl_operations": [float(totals.operations)],
                "nccl_lost_operations": [(counters.dropped + self._lost) / ranks],
                "nccl_untimed_operations": [(counters.incomplete + self._untimed) / ranks],
            },
        )

    def _mistimed_event(
        self, window: OperationWindow, functions: set[int], communicator: Communicator | None
    ) -> Event:
        names = sorted({FUNCTIONS[one] if one < len(FUNCTIONS) else "operation" for one in functions})
        size = communicator.ranks if communicator else None
        message = (
            f"NCCL reports GPU times of other kernels for {', '.join(names)} on a communicator of"
            f" {size or 'an unknown number of'} ranks. Their durations are unknown; other communicators are"
            " not affected."
        )
        if "Broadcast" in names and self._segment.process.profiler_version >= _NEWEST_INTERFACE:
            message += _AFTER_BROADCAST
        return Event(
            kind=EventKind.NCCL_TIMES_WRONG,
            time_unix_ns=window.end_unix_ns,
            message=message,
            job=window.job,
            rank=window.rank,
        )


def _filled(segment: Segment, records: npt.NDArray[np.void], offset: int) -> int:
    """How many records there were in the file to fill."""
    try:
        return os.preadv(segment.fileno(), [records.view(np.uint8).data], offset) // records.itemsize
    except OSError as error:
        raise Unavailable(f"{segment.path} cannot be read: {error.strerror}.") from error


def _by_rank(operations: Operations, ranks: ProcessRanks) -> dict[int, Operations]:
    """The operations of each rank of a process; those of unknown communicators are left out."""
    communicator = operations.column("communicator")
    known = _KNOWN_NONE.copy()
    known[list(ranks.communicators)] = True
    if len(ranks.devices) == 1 and known[communicator].all():
        return dict.fromkeys(ranks.devices, operations)
    return {
        rank: operations.select(
            np.isin(communicator, [index for index, owner in ranks.communicators.items() if owner == rank])
        )
        for rank in ranks.devices
    }
