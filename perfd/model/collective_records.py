"""Operations of NCCL: their times, and how far each rank is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class TimingSource(StrEnum):
    """Whose clock timed a collective."""

    GPU = "gpu"
    """The GPU's own, from the first channel's start to the last one's stop."""
    PROXY = "proxy"
    """The host's, when NCCL's proxy thread noticed the kernel: late by its polling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTimes:
    """One rank's operations of one kind on one communicator within a window, reduced at the edge.

    The totals are over all operations. `sequences` and the columns below it are of those that were kept, so
    that ranks can be matched: when an agent must thin them out, it keeps the same sequence numbers on every
    rank. A duration includes waiting for the other ranks.
    """

    job: str
    rank: int
    communicator: str
    """NCCL's identity of the communicator in hexadecimal, the same on all its ranks."""
    communicator_rank: int | None = None
    communicator_size: int | None = None
    communicator_name: str = ""
    operation: str
    """As NCCL names it: `AllReduce`, `Send`, ..."""
    peer: int | None = None
    """Of a send or receive: the other side's rank in the communicator."""
    timing: TimingSource
    start_unix_ns: int
    end_unix_ns: int
    count: int
    total_bytes: float | None = None
    total_s: float
    min_s: float
    max_s: float
    algorithm: str = ""
    """As NCCL names it: `RING`, `TREE`, `NVLS`, ...; this and the next two are the largest operation's."""
    protocol: str = ""
    """`LL`, `LL128` or `SIMPLE`."""
    channels: int | None = None
    sequences: Sequence[int] = ()
    durations_ns: Sequence[int] = ()
    sizes_bytes: Sequence[int] = ()
    gpu_starts_ns: Sequence[int] = ()
    """Of sends and receives: when each began, by the clock of the rank's GPU, which no other one shares."""
    source: str = ""
    """Who recorded them when it was not perfd's plugin: `inspector`. Others may record a part only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveProgress:
    """How far one rank is on one communicator: what a hang is localised by.

    Sequence numbers count the operations of the communicator on that rank; they can be compared over ranks
    of one `communicator` and `source`. None where the source does not tell.
    """

    job: str
    rank: int
    communicator: str
    """An identity that all its ranks share: NCCL's, or the name of the process group."""
    communicator_name: str = ""
    members: Sequence[int] = ()
    """Global ranks of the communicator, empty when the source does not tell."""
    operation: str = ""
    """The newest operation that was enqueued and is not complete, else the newest one."""
    enqueued: int | None = None
    """Sequence number of the newest operation that the program asked for."""
    started: int | None = None
    """Of the newest one that began on the GPU."""
    completed: int | None = None
    time_unix_ns: int
    """When the newest of these happened, or was read."""
    source: str
    """`flight_recorder`, `nccl_plugin`."""
