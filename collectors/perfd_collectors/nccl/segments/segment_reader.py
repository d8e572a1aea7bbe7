"""Reads one process's segment and reduces its operations to records once per window."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

import msgspec

from perfd.model import Event, EventKind, Record, SampleTable, Scope
from perfd_collectors.nccl.sampling import BusyTime
from perfd_collectors.nccl.segments.gpu_clock import GpuClock, GpuClockReadings
from perfd_collectors.nccl.segments.plugin_records import (
    FUNCTIONS,
    Communicator,
    Operation,
    ProcessInfo,
    ProcessRanks,
    SegmentReading,
)
from perfd_collectors.nccl.segments.segment import RecordingMode, Segment
from perfd_collectors.nccl.segments.timing_checks import check_times, without_time
from perfd_collectors.nccl.segments.window_reduction import (
    OperationWindow,
    busy_ns,
    keep_one_in,
    reduce_operations,
)

_AFTER_BROADCAST = " NCCL 2.32 does so after a Broadcast: try NCCL_ALLGATHERV_ENABLE=0."
_NEWEST_INTERFACE = 6
"""That of NCCL 2.29 and newer: an older one is not NCCL 2.32."""


class RankTotals(msgspec.Struct):
    """What is counted of one rank of the process."""

    operations: int = 0
    busy: BusyTime = msgspec.field(default_factory=BusyTime)


class SegmentProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Up to where a segment was reported, and its counters then: where the next agent resumes."""

    positions: dict[int, int]
    reported_unix_ns: int
    lost: int
    untimed: int
    ranks: dict[int, RankTotals]


class SegmentReader:
    """Reads an open segment. `progress` is where an earlier agent stopped; None: nowhere yet."""

    def __init__(self, segment: Segment, now_unix_ns: int, progress: SegmentProgress | None) -> None:
        self.file = _identity(segment.status())
        """Device and inode, which identify the file under any name."""
        self._segment = segment
        self._recording = RecordingMode.GPU_TIME in segment.recording_mode()
        self._pending: list[Operation] = []
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
            segment.resume(progress.positions)
            self._lost, self._untimed, self._ranks = progress.lost, progress.untimed, dict(progress.ranks)
        first = self.read()
        self._reported_unix_ns = min(now_unix_ns, self._begun_unix_ns(first, progress, now_unix_ns))

    def read(self) -> SegmentReading:
        """Read new operations."""
        reading = self._segment.read()
        self._pending += reading.operations
        self._lost += reading.lost
        return reading

    def report(
        self,
        job: str,
        now_unix_ns: int,
        max_operations_per_s: int,
        ranks: ProcessRanks,
    ) -> list[Record]:
        """Records of the operations since the last report, by the ranks of the process."""
        start_unix_ns, self._reported_unix_ns = self._reported_unix_ns, now_unix_ns
        operations, self._pending = self._pending, []
        communicators = {one.index: one for one in self._segment.communicators()}
        newly_mistimed, operations = self._check_times(operations)
        self._partly_timed = bool(self._mistimed)
        self._mistimed &= {one.index for one in communicators.values() if one.live}
        self._untimed += sum([one.timed for one in operations if one.duration_ns is None])
        keep = keep_one_in(len(operations), now_unix_ns - start_unix_ns, max_operations_per_s)
        by_rank: dict[int, list[Operation]] = {rank: [] for rank in ranks.devices}
        for one in operations:
            if (rank := ranks.communicators.get(one.communicator)) is not None:
                by_rank[rank].append(one)
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
        return tuple(self._segment.communicators())

    def _clock(self, rank: int, operations: Sequence[Operation]) -> GpuClock | None:
        to_monotonic_ns = self._clocks.setdefault(rank, GpuClockReadings()).add(operations)
        process = self._segment.process
        if to_monotonic_ns is None:
            return None
        return GpuClock(to_monotonic_ns, process.unix_ns - process.monotonic_ns)

    def _count(self, by_rank: Mapping[int, Sequence[Operation]]) -> None:
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

    def _check_times(self, operations: Sequence[Operation]) -> tuple[dict[int, set[int]], list[Operation]]:
        """Functions of newly mistimed communicators, and the operations without wrong times."""
        check = check_times(operations)
        newly: dict[int, set[int]] = {}
        found = check.communicators - self._mistimed
        for one in operations if found else ():
            if one.communicator in found:
                newly.setdefault(one.communicator, set()).add(one.function)
        self._mistimed |= check.communicators
        if not self._mistimed:
            self._untimed += check.wrong
            return newly, list(check.operations)
        wrong = [one.timed and one.communicator in self._mistimed for one in check.operations]
        self._untimed += check.wrong + sum(wrong)
        return newly, [
            without_time(one) if mistimed else one
            for one, mistimed in zip(check.operations, wrong, strict=True)
        ]

    def switch(self, mode: RecordingMode) -> None:
        """Set what the plugin records from now on, unless another reader controls the segment."""
        if self._segment.take_control() and self._segment.recording_mode() != mode:
            self._segment.set_recording_mode(mode)
        self._recording = RecordingMode.GPU_TIME in self._segment.recording_mode()

    def progress(self) -> SegmentProgress:
        """Up to where the segment was reported."""
        return SegmentProgress(
            positions=dict(self._segment.positions),
            reported_unix_ns=self._reported_unix_ns,
            lost=self._lost,
            untimed=self._untimed,
            ranks=self._ranks,
        )

    def close(self) -> None:
        """Close the segment; legal twice."""
        self._segment.close()

    def _begun_unix_ns(
        self, first: SegmentReading, progress: SegmentProgress | None, now_unix_ns: int
    ) -> int:
        """Since when all operations are known: they may be older than the moment they were read."""
        reported_unix_ns = 0 if progress is None else progress.reported_unix_ns
        if progress is not None and not first.lost:
            return reported_unix_ns
        process = self._segment.process
        ended_ns = (one.complete_monotonic_ns for one in first.operations if not one.incomplete)
        oldest_ns = min(ended_ns, default=None)
        if oldest_ns is None:
            return now_unix_ns
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


def same_file(reader: SegmentReader, segment: Segment) -> bool:
    """Whether a segment is the file of a reader under another name."""
    return reader.file == _identity(segment.status())


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
