"""One form for every profiler's trace: what one rank's GPU and host did, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfd.trace.model.intervals import Codes, Indices, Ns
from perfd.trace.model.trace_detail import TraceDetail
from perfd.trace.model.trace_steps import TraceStep


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOperations:
    """n operations on a GPU, in order of start. Times are nanoseconds on the clock of the file."""

    start_ns: Ns
    end_ns: Ns
    kind: Codes
    name: Indices
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
    kind: Codes
    correlation: Ns
    thread: Ns
    name: Indices
    """Index into the trace's `call_names`."""

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A range of time that the program named: an NVTX range, or PyTorch's `record_function`."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    domain: str = ""
    """Of an NVTX range, by which a library keeps its names apart; empty for the program's own."""
    payload: float | None = None
    """The number that the program gave with an NVTX range, such as a batch size; it has no unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group of the job that this rank is in."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One side of a point-to-point transfer."""

    peer: int
    sent: bool
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """The trace's data about one communication kernel, apart from its time."""

    operation: int
    """Index into the rank's `GpuOperations`."""
    name: str
    """As the framework calls it: `allreduce`, `_allgather_base`, `barrier`, ..."""
    group: str
    """What the group is for, where it was described, else its name; empty where the trace says neither."""
    group_ranks: tuple[int, ...] = ()
    sequence: int | None = None
    size_bytes: int | None = None
    elements: int | None = None
    messages: tuple[Message, ...] = ()
    """Of a kernel that sends and receives."""
    communicator: int | None = None
    """NCCL's number of the group, the same on all its ranks, where that alone is recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HloOperations:
    """Which operation of XLA's HLO each of n operations on a GPU belongs to."""

    names: Sequence[str]
    modules: Sequence[str]
    """Of the same length: the module that each is of, which numbers its operations by itself; or empty."""
    name: Indices
    """Index into `names`; -1 where the trace does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """One rank of a capture."""

    file: str
    rank: int | None
    gpu: str | None
    """The device's name."""
    device: int | None
    names: Sequence[str]
    classes: Sequence[str]
    """Of the same length: the class of each name, as `matmul`."""
    operations: GpuOperations
    calls: HostCalls
    call_names: Sequence[str] = ()
    steps: Sequence[TraceStep] = ()
    phases: Sequence[Phase] = ()
    collectives: Sequence[Collective] = ()
    groups: Sequence[Group] = ()
    world_size: int | None = None
    overhead: tuple[Ns, Ns] = field(
        default_factory=lambda: (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    )
    """When the profiler itself held the process up: starts and ends."""
    captured_ns: tuple[int, int] | None = None
    """When the capture began and ended on this clock, if the trace has it."""
    recorded_from_ns: int | None = None
    """When the records of the GPU begin, where they may begin later than the capture and its ranges."""
    epoch_ns: int | None = None
    """Wall time of the clock's zero, if the trace has it: puts the ranks of a capture on one clock."""
    notes: Sequence[str] = ()
    """What the reader of the trace should know: what was missing, what was skipped."""
    hlo: HloOperations | None = None
    """Of JAX's traces."""
    detail: TraceDetail | None = None
    """What tables need; None unless requested of the reader, and of traces that have none."""


EMPTY = np.empty(0, dtype=np.int64)


def operations_of(columns: Mapping[str, Ns]) -> tuple[GpuOperations, Ns]:
    """Operations from unordered columns of equal length, and which of them each row was.

    `columns` are named as in `GpuOperations`.
    """
    order = np.argsort(columns["start_ns"], kind="stable")
    operations = GpuOperations(
        start_ns=columns["start_ns"][order],
        end_ns=columns["end_ns"][order],
        kind=columns["kind"][order].astype(np.uint8),
        name=columns["name"][order].astype(np.int32),
        stream=columns["stream"][order],
        correlation=columns["correlation"][order],
    )
    return operations, order


def calls_of(columns: Mapping[str, Ns]) -> HostCalls:
    """Calls from unordered columns of equal length, named as in `HostCalls`."""
    order = np.argsort(columns["start_ns"], kind="stable")
    return HostCalls(
        start_ns=columns["start_ns"][order],
        end_ns=columns["end_ns"][order],
        kind=columns["kind"][order].astype(np.uint8),
        correlation=columns["correlation"][order],
        thread=columns["thread"][order],
        name=columns["name"][order].astype(np.int32),
    )


def no_calls() -> HostCalls:
    """What a trace without the host's side has."""
    return HostCalls(
        start_ns=EMPTY,
        end_ns=EMPTY,
        kind=EMPTY.astype(np.uint8),
        correlation=EMPTY,
        thread=EMPTY,
        name=EMPTY.astype(np.int32),
    )
