"""What perfd's NCCL plugin tells of operations, communicators and itself, as Python has it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

FUNCTIONS = (
    "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv",
    "Send", "Recv", "AlltoAll", "Gather", "Scatter",
)  # fmt: skip
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")
DATATYPE_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
KERNEL_EDGES_NS = 3_500
"""What a kernel of NCCL runs for before its first stamp and after its last one.

NCCL reads the GPU's clock, or tells its proxy thread, inside its kernel. Against PyTorch's profiler 569
kernels of 58 us to 15 ms were longer by 3.5 us in the median, by 3.2 to 4.2 us for eight in ten of them,
whatever they did and how long they took (all-reduces, sends and receives; H200, NCCL 2.28.9 and 2.30.7).
"""
_EARLY_NS = 1_000_000_000
"""A kernel may have begun before NCCL announced it: outside graphs it is launched first."""


class OperationTiming(IntEnum):
    """Where the times of a record come from."""

    HOST = 1
    """The host's enqueue only: no duration."""
    PROXY = 2
    """When NCCL's proxy thread noticed the kernel: late by its polling."""
    GPU = 3
    """The GPU's own clock."""


_TIMED = frozenset({OperationTiming.PROXY, OperationTiming.GPU})


class Operation(NamedTuple):
    """One collective, send or receive as the plugin recorded it; see `struct perfd_record`."""

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

    @property
    def incomplete(self) -> bool:
        """Whether the plugin gave it up before all its kernel channels were seen."""
        return bool(self.flags & 1)

    @property
    def point_to_point(self) -> bool:
        """Whether it is a send or a receive."""
        return bool(self.flags & 2)

    @property
    def timed(self) -> bool:
        """Whether its kernel was timed, well or badly."""
        return self.timing in _TIMED and not self.incomplete

    @property
    def duration_ns(self) -> int | None:
        """From the first channel's stamp to the last one's; None where it was not measured, or wrongly.

        NCCL has told stops before starts, and the times of other kernels than it meant: then a kernel seems
        to run for longer than there was time between its announcement and its end.
        """
        duration_ns = self.gpu_stop_ns - self.gpu_start_ns
        possible_ns = self.complete_monotonic_ns - self.start_monotonic_ns + _EARLY_NS
        if not self.timed or self.channels_seen < self.channels or not 0 <= duration_ns <= possible_ns:
            return None
        return duration_ns

    @property
    def gpu_duration_ns(self) -> int | None:
        """The same by the GPU's clock, None without."""
        return self.duration_ns if self.timing == OperationTiming.GPU else None

    @property
    def kernel_end_ns(self) -> int:
        """When its kernel ended, had it begun at the first stamp."""
        return self.gpu_stop_ns + KERNEL_EDGES_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """One communicator of a process. Ids are NCCL's, the same on all its ranks; None before interface 4."""

    index: int
    id: int | None
    rank: int | None
    ranks: int | None
    nodes: int | None
    live: bool
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCounters:
    """Cumulative since the process started."""

    started: int
    recorded: int
    incomplete: int
    dropped: int
    stale: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """Which process writes the segment. `pid` is in the process's own namespace."""

    pid: int
    rank: int | None
    local_rank: int | None
    world_size: int | None
    profiler_version: int
    unix_ns: int
    monotonic_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReading:
    """What is new, oldest first within each ring, and how many records were overwritten unread."""

    operations: list[Operation]
    lost: int
