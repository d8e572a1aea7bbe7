"""NCCL operations: their times, and the progress of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class TimingSource(StrEnum):
    """The clock of an operation's duration."""

    GPU = "gpu"
    """The GPU's, from the first channel's start to the last channel's stop."""
    PROXY = "proxy"
    """The host's, from NCCL's proxy thread: late by its polling interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTimes:
    """One rank's operations of one kind on one communicator in a window, reduced on the node.

    The totals are over all operations. `sequences` and the columns below it have one value per operation, for
    matching ranks; at high rates agents sample them, with the same sequence numbers on every rank. Durations
    include waiting for the other ranks.
    """

    job: str
    rank: int
    communicator: str
    """NCCL's id of the communicator in hexadecimal, the same on all its ranks."""
    communicator_rank: int | None = None
    communicator_size: int | None = None
    communicator_name: str = ""
    operation: str
    """NCCL's name: `AllReduce`, `Send`, ..."""
    peer: int | None = None
    """For a send or receive, the peer's rank in the communicator."""
    timing: TimingSource
    start_unix_ns: int
    end_unix_ns: int
    count: int
    total_bytes: float | None = None
    total_s: float
    min_s: float
    max_s: float
    algorithm: str = ""
    """NCCL's name: `RING`, `TREE`, `NVLS`, ...; this and the next two are of the largest operation."""
    protocol: str = ""
    """`LL`, `LL128` or `SIMPLE`."""
    channels: int | None = None
    sequences: Sequence[int] = ()
    durations_ns: Sequence[int] = ()
    sizes_bytes: Sequence[int] = ()
    gpu_starts_ns: Sequence[int] = ()
    """For sends and receives, their start by the clock of the rank's GPU, which other GPUs do not share."""
    source: str = ""
    """The recorder, if not perfd's plugin: `inspector`. Others may record only a part."""
    start_increments_us: Sequence[int] = ()
    """When operations began on the GPU, by the node's clock: the first by how many microseconds after
    `start_unix_ns`, each further one after the one before it. Empty where unknown; small numbers take few
    bytes on the wire."""
    queued_us: Sequence[int] = ()
    """How many microseconds before that the host had enqueued each; empty where unknown. Negative by a
    little where a kernel begins before its announcement by NCCL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveProgress:
    """The progress of one rank on one communicator, for localizing a hang.

    Sequence numbers count the communicator's operations on that rank; they are comparable between ranks of
    one `communicator` and `source`. None when unknown.
    """

    job: str
    rank: int
    communicator: str
    """An id shared by all its ranks: NCCL's, or the name of the process group."""
    communicator_name: str = ""
    members: Sequence[int] = ()
    """Global ranks of the communicator; empty when unknown."""
    operation: str = ""
    """The newest enqueued, incomplete operation, else the newest one."""
    enqueued: int | None = None
    """Sequence number of the newest enqueued operation."""
    started: int | None = None
    """That of the newest operation started on the GPU."""
    completed: int | None = None
    time_unix_ns: int
    """Time of the newest of these, or of reading them."""
    source: str
    """`flight_recorder`, `nccl_plugin`."""
