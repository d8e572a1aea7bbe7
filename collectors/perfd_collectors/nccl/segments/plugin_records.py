"""What perfd's NCCL plugin says of a process: its communicators, ranks and the plugin's own counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
