"""One form for every profiler's trace: what one rank's GPU and host did, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from perfd.trace.intervals import Ns


class Kind(IntEnum):
    """What occupies the GPU."""

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2
    """A copy or a fill."""


class Call(IntEnum):
    """What the host is doing in a call into the driver."""

    LAUNCH = 0
    """Anything that puts work on the GPU: a kernel, a graph, an asynchronous copy."""
    SYNCHRONIZE = 1
    """Waiting for the GPU."""
    OTHER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOperations:
    """n operations on a GPU, in order of start. Times are nanoseconds on one clock of the capture."""

    start_ns: Ns
    end_ns: Ns
    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    """Index into the trace's `names`."""
    stream: Ns
    correlation: Ns
    """Matches the host's call that launched it; -1 where the trace does not say."""

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCalls:
    """m calls of a rank's process into the CUDA runtime or driver, in order of start."""

    start_ns: Ns
    end_ns: Ns
    kind: NDArray[np.uint8]
    correlation: Ns
    thread: Ns

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One iteration that the trace marks."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """What the trace tells of one communication kernel beside its time."""

    operation: int
    """Index into the rank's `GpuOperations`."""
    name: str
    group: str
    group_ranks: tuple[int, ...] = ()
    sequence: int | None = None
    size_bytes: int | None = None
    peer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """One rank of a capture."""

    file: str
    rank: int | None
    gpu: str | None
    """The device's name."""
    device: int | None
    names: Sequence[str]
    operations: GpuOperations
    calls: HostCalls
    steps: Sequence[Step] = ()
    collectives: Sequence[Collective] = ()
    overhead: tuple[Ns, Ns] = field(
        default_factory=lambda: (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    )
    """When the profiler itself held the process up: starts and ends."""
    captured_ns: tuple[int, int] | None = None
    """When the capture began and ended, when the trace tells it."""
    epoch_ns: int | None = None
    """Wall time of the clock's zero, when the trace tells it."""
    notes: Sequence[str] = ()
    """What the reader of the trace should know: what was missing, what was skipped."""


EMPTY = np.empty(0, dtype=np.int64)


def operations_of(columns: Mapping[str, Sequence[int]]) -> GpuOperations:
    """Operations from unordered columns of equal length, named as in `GpuOperations`."""
    start = np.asarray(columns["start_ns"], dtype=np.int64)
    order = np.argsort(start, kind="stable")
    return GpuOperations(
        start_ns=start[order],
        end_ns=np.asarray(columns["end_ns"], dtype=np.int64)[order],
        kind=np.asarray(columns["kind"], dtype=np.uint8)[order],
        name=np.asarray(columns["name"], dtype=np.int32)[order],
        stream=np.asarray(columns["stream"], dtype=np.int64)[order],
        correlation=np.asarray(columns["correlation"], dtype=np.int64)[order],
    )


def calls_of(columns: Mapping[str, Sequence[int]]) -> HostCalls:
    """Calls from unordered columns of equal length, named as in `HostCalls`."""
    start = np.asarray(columns["start_ns"], dtype=np.int64)
    order = np.argsort(start, kind="stable")
    return HostCalls(
        start_ns=start[order],
        end_ns=np.asarray(columns["end_ns"], dtype=np.int64)[order],
        kind=np.asarray(columns["kind"], dtype=np.uint8)[order],
        correlation=np.asarray(columns["correlation"], dtype=np.int64)[order],
        thread=np.asarray(columns["thread"], dtype=np.int64)[order],
    )
