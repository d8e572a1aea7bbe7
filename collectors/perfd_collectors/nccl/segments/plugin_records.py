"""Records of perfd's NCCL plugin in Python: operations, communicators and the plugin's own counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from perfd.collector import PciAddress

FUNCTIONS = (
    "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv",
    "Send", "Recv", "AlltoAll", "Gather", "Scatter",
)  # fmt: skip
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")
DATATYPE_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
"""By NCCL's number of a type (`ncclDataType_t`)."""
UNTIMED_KERNEL_NS = 3_500
"""Time that an NCCL kernel runs before its first timestamp and after its last one.

NCCL reads the GPU's clock, or notifies its proxy thread, inside its kernel. Measured against PyTorch's
profiler: 569 kernels of 58 µs to 15 ms ran longer by 3.5 µs (p50; p10 3.2 µs, p90 4.2 µs), regardless of
operation and duration (all-reduces, sends and receives; H200, NCCL 2.28.9 and 2.30.7).
"""
_MAX_EARLY_START_NS = 1_000_000_000
"""How long before NCCL's announcement a kernel may have started: outside CUDA graphs NCCL launches first.

Generous on purpose: it only rejects times that belong to another kernel.
"""


class OperationTiming(IntEnum):
    """The clock that a record's duration comes from."""

    HOST = 1
    """Only the host's enqueue time is known: no duration."""
    PROXY = 2
    """NCCL's proxy thread polled the kernel's progress: late by its polling interval."""
    GPU = 3
    """The GPU's own clock."""


_TIMED = frozenset({OperationTiming.PROXY, OperationTiming.GPU})


class Operation(NamedTuple):
    """One collective, send or receive as recorded by the plugin; see `struct perfd_record`."""

    sequence: int
    operation_sequence: int
    start_monotonic_ns: int
    stop_monotonic_ns: int
    complete_monotonic_ns: int
    gpu_start_ns: int
    gpu_stop_ns: int
    gpu_longest_ns: int
    elements: int
    group: int
    peer_or_root: int
    communicator: int
    function: int
    datatype: int
    algorithm: int
    protocol: int
    channels: int
    channels_seen: int
    timing: int
    flags: int
    channels_mistimed: int = 0
    """Channels for which NCCL reported the times of an earlier kernel; those are left out."""

    @property
    def incomplete(self) -> bool:
        """Whether the plugin abandoned it before all its kernel channels had stopped."""
        return bool(self.flags & 1)

    @property
    def point_to_point(self) -> bool:
        """Whether it is a send or a receive."""
        return bool(self.flags & 2)

    @property
    def timed(self) -> bool:
        """Whether its kernel has timestamps, plausible or not."""
        return self.timing in _TIMED and not self.incomplete

    @property
    def duration_ns(self) -> int | None:
        """From the first channel's timestamp to the last one's; None where it is unknown or impossible.

        NCCL has reported stops before starts, and times of other kernels: then a kernel seems to run for
        longer than the time between its announcement and its end.
        """
        # As `timed`, written out: this runs for every operation, several times.
        if self.timing not in _TIMED or self.flags & 1:
            return None
        seen = self.channels_seen
        if seen < self.channels or self.channels_mistimed >= seen:
            return None
        duration_ns = self.gpu_stop_ns - self.gpu_start_ns
        possible_ns = self.complete_monotonic_ns - self.start_monotonic_ns + _MAX_EARLY_START_NS
        return duration_ns if 0 <= duration_ns <= possible_ns else None

    @property
    def gpu_duration_ns(self) -> int | None:
        """The duration by the GPU's clock; None without one."""
        return self.duration_ns if self.timing == OperationTiming.GPU else None

    @property
    def kernel_end_ns(self) -> int:
        """When its kernel would have ended, had it started at the first timestamp."""
        return self.gpu_stop_ns + UNTIMED_KERNEL_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """One communicator of a process. Its id is NCCL's, the same on all ranks; None before interface 4."""

    index: int
    id: int | None
    rank: int | None
    ranks: int | None
    nodes: int | None
    live: bool
    name: str
    device: PciAddress | None = None
    """The GPU of its rank; None without CUDA's driver in the process, or with an older plugin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRanks:
    """The ranks of one process."""

    world_size: int | None
    devices: Mapping[int, PciAddress | None]
    """The GPU of each rank; None if unknown."""
    communicators: Mapping[int, int]
    """The rank of each communicator, by the index in the process's table."""


NO_RANKS = ProcessRanks(world_size=None, devices={}, communicators={})
"""Of a process whose ranks are unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCounters:
    """The plugin's counters, cumulative since the process started."""

    started: int
    recorded: int
    incomplete: int
    dropped: int
    stale: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """The process that writes the segment. `pid` is that of its own PID namespace."""

    pid: int
    rank: int | None
    local_rank: int | None
    world_size: int | None
    profiler_version: int
    unix_ns: int
    monotonic_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReading:
    """New operations, oldest first within each ring buffer, and how many were overwritten unread."""

    operations: list[Operation]
    lost: int
