"""Operations as columns: a process records thousands per second, too many for a Python object each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Flags: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Places: TypeAlias = npt.NDArray[np.intp]

RECORD = np.dtype(
    {
        "names": [
            "sequence", "operation_sequence", "start_monotonic_ns", "stop_monotonic_ns",
            "complete_monotonic_ns", "gpu_start_ns", "gpu_stop_ns", "gpu_longest_ns", "elements", "group",
            "peer_or_root", "communicator", "function", "datatype", "algorithm", "protocol", "channels",
            "channels_seen", "timing", "flags", "channels_mistimed",
        ],
        "formats": ["<u8"] * 2 + ["<i8"] * 6 + ["<u8"] * 2 + ["<i4", "<u2"] + ["u1"] * 9,
        "offsets": [*range(0, 80, 8), 80, 84, *range(86, 95)],
        "itemsize": 128,
    }
)  # fmt: skip
"""`struct perfd_record` of the plugin's `layout.h`. Times are signed: values from 2^63 on are garbage."""
_BYTES = np.dtype((np.void, RECORD.itemsize))
"""A record as one value: numpy copies the fields of `RECORD` one by one."""
_NO_RECORDS = np.empty(0, RECORD)
UNKNOWN_NS = -1
"""Stands for a duration that is unknown."""
_MAX_EARLY_START_NS = 1_000_000_000
"""How long before NCCL's announcement a kernel may have started: outside CUDA graphs NCCL launches first.

Generous on purpose: it only rejects times that belong to another kernel.
"""
_MAX_TIME_NS = 1 << 61
"""73 years; a clock beyond it is garbage, and sums of such times would overflow."""
INCOMPLETE, POINT_TO_POINT = 1, 2
"""Bits of `flags`."""
_MIN_PAIRS = 20
"""Pairs of consecutive kernels before a communicator is judged. Chosen, not measured."""
_MAX_OVERLAPPING_RATIO = 0.25
"""Of the pairs, how many may overlap: none of 12,519 measured operations did with correct times."""
_MIN_OVERLAP_NS = 1_000
"""Shorter overlaps do not count. Chosen, not measured."""


class OperationTiming(IntEnum):
    """The clock that a record's duration comes from."""

    HOST = 1
    """Only the host's enqueue time is known: no duration."""
    PROXY = 2
    """NCCL's proxy thread polled the kernel's progress: late by its polling interval."""
    GPU = 3
    """The GPU's own clock."""


class Operation(NamedTuple):
    """One row: a collective, send or receive as recorded by the plugin; see `struct perfd_record`."""

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


class Operations:
    """Operations of one process, as they were read. Columns have one value per operation."""

    def __init__(self, records: npt.NDArray[np.void]) -> None:
        self.records = records
        """Shape (operations,), of `RECORD`; not modified."""

    @classmethod
    def of(cls, rows: Iterable[Operation]) -> Operations:
        """From rows."""
        return cls(np.array([tuple(row) for row in rows], dtype=RECORD))

    @classmethod
    def joined(cls, parts: Sequence[Operations]) -> Operations:
        """One after the other."""
        if not parts:
            return cls(_NO_RECORDS)
        if len(parts) == 1:
            return parts[0]
        return cls(np.concatenate([part.records.view(_BYTES) for part in parts]).view(RECORD))

    def __len__(self) -> int:
        return len(self.records)

    def rows(self) -> list[Operation]:
        """Each as a row."""
        return [Operation._make(row) for row in self.records.tolist()]

    def column(self, name: str) -> npt.NDArray[Any]:
        """One field of all, shape (operations,), with the type in `RECORD`."""
        return self.records[name]

    def select(self, chosen: Flags | Places) -> Operations:
        """Those chosen by a mask or by their places."""
        return Operations(self.records.view(_BYTES)[chosen].view(RECORD))

    def without_times(self, chosen: Flags) -> Operations:
        """All of them, those chosen as if NCCL had reported no time on the GPU."""
        if not chosen.any():
            return self
        records = self.records.copy()
        records["timing"][chosen] = OperationTiming.HOST
        return Operations(records)

    @cached_property
    def incomplete(self) -> Flags:
        """Whether the plugin abandoned each before all its kernel channels had stopped."""
        return (self.column("flags") & INCOMPLETE).astype(bool)

    @cached_property
    def point_to_point(self) -> Flags:
        """Whether each is a send or a receive."""
        return (self.column("flags") & POINT_TO_POINT).astype(bool)

    @cached_property
    def timed(self) -> Flags:
        """Whether the kernel of each has timestamps, plausible or not."""
        timing = self.column("timing")
        known: Flags = (timing == OperationTiming.GPU) | (timing == OperationTiming.PROXY)
        return known & ~self.incomplete

    @cached_property
    def durations_ns(self) -> Integers:
        """From the first channel's timestamp to the last one's; `UNKNOWN_NS` where unknown or impossible.

        NCCL has reported stops before starts, and times of other kernels: then a kernel seems to run for
        longer than the time between its announcement and its end.
        """
        begin, end = self.column("gpu_start_ns"), self.column("gpu_stop_ns")
        announced, complete = self.column("start_monotonic_ns"), self.column("complete_monotonic_ns")
        seen, wrong = self.column("channels_seen"), self.column("channels_mistimed")
        lasted = end - begin
        known = self.timed & (seen >= self.column("channels")) & (wrong < seen)
        known &= (lasted >= 0) & (lasted <= complete - announced + _MAX_EARLY_START_NS)
        for time in (begin, end, announced, complete):
            known &= (time < _MAX_TIME_NS) & (time > -_MAX_TIME_NS)
        return np.where(known, lasted, UNKNOWN_NS)

    @cached_property
    def measured(self) -> Flags:
        """Whether each has a duration."""
        measured: Flags = self.durations_ns != UNKNOWN_NS
        return measured

    @cached_property
    def on_gpu(self) -> Flags:
        """Whether each has a duration by the GPU's clock."""
        by_gpu: Flags = self.column("timing") == OperationTiming.GPU
        return self.measured & by_gpu


@dataclass(frozen=True, slots=True)
class Kernels:
    """Operations ordered so that those of one kernel are adjacent."""

    order: Places
    """Places of the operations: by family, then by the first operation of their kernel, then as they came."""
    first: Places
    """Where in `order` each kernel begins."""


def kernels_of(families: Integers, groups: npt.NDArray[np.uint64]) -> Kernels:
    """Kernels of operations: one per `group` of NCCL and family; operations of group 0 have their own.

    Both arguments have one value per operation.
    """
    # numpy sorts numbers of 16 bits in linear time.
    small = families.astype(np.uint16) if families.max(initial=0) < 1 << 16 else families
    order = small.argsort(kind="stable")
    family, group = families[order], groups[order]
    others = family[1:] != family[:-1]
    if (others | (group[1:] >= group[:-1])).all():
        # As NCCL numbers groups in order, those of a kernel are mostly adjacent already.
        return Kernels(order, np.flatnonzero(_begins(others, group)))
    order = np.lexsort((groups, families))
    family, group = families[order], groups[order]
    begins = _begins(family[1:] != family[:-1], group)
    if begins.all():
        return Kernels(small.argsort(kind="stable"), np.arange(len(order)))
    starts = np.flatnonzero(begins)
    by_first = np.lexsort((order[starts], family[starts]))
    rank = np.empty(len(starts), dtype=np.intp)
    rank[by_first] = np.arange(len(starts))
    of_kernel = rank[np.cumsum(begins) - 1]
    arranged = np.argsort(of_kernel, kind="stable")
    members = np.bincount(of_kernel)
    return Kernels(order[arranged], np.cumsum(members) - members)


def _begins(others: Flags, group: npt.NDArray[np.uint64]) -> Flags:
    """Where kernels begin; `others` says of each but the first operation whether it is of another family."""
    begins = np.ones(len(group), dtype=bool)
    begins[1:] = others | (group[1:] != group[:-1]) | (group[1:] == 0)
    return begins


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingCheck:
    """Operations, and those of them whose times are wrong."""

    operations: Operations
    """All of them; those with the times of other kernels as if NCCL had reported none."""
    wrong: int
    """How many of them those are."""
    communicators: frozenset[int]
    """Indices of the communicators with so many wrong times that none can be trusted."""


def check_times(operations: Operations) -> TimingCheck:
    """Take the times from operations that cannot have them: kernels of one communicator run in sequence.

    NCCL matches timestamps to kernels by a work counter per channel, kept separately by host and GPU. Where
    the two disagree, times belong to other work: with NCCL 2.32.3, after a Broadcast, all-reduces seemed 13
    times as long as their kernels; with NCCL 2.28.9 some receives of an all-to-all had the times of the
    previous one. Of 12,519 operations of NCCL 2.27.7, 2.28.9 and 2.30.7 without either none overlapped.
    Operations of one group share a kernel, and those of several communicators overlap legitimately.
    """
    places = np.flatnonzero(operations.on_gpu)
    announced_ns = operations.column("start_monotonic_ns")[places]
    places = places[np.argsort(announced_ns, kind="stable")]
    if not len(places):
        return TimingCheck(operations=operations, wrong=0, communicators=frozenset())
    communicator = operations.column("communicator")[places].astype(np.int64)
    kernels = kernels_of(communicator, operations.column("group")[places])
    places, communicator = places[kernels.order], communicator[kernels.order]
    starts_ns = operations.column("gpu_start_ns")[places]
    stops_ns = np.maximum.reduceat(operations.column("gpu_stop_ns")[places], kernels.first)
    of_kernel = communicator[kernels.first]
    # Whether there is a kernel before it on its communicator.
    follows = np.concatenate([[False], of_kernel[1:] == of_kernel[:-1]])
    sizes = np.diff(kernels.first, append=len(places))
    early = np.repeat(follows, sizes) & (starts_ns < np.repeat(np.roll(stops_ns, 1), sizes) - _MIN_OVERLAP_NS)
    overlapping = np.logical_and.reduceat(early, kernels.first)
    count = np.bincount(of_kernel)
    mixed = (count > _MIN_PAIRS) & (
        np.bincount(of_kernel, weights=overlapping) > _MAX_OVERLAPPING_RATIO * (count - 1)
    )
    early |= mixed[communicator]
    wrong = np.zeros(len(operations), dtype=bool)
    wrong[places[early]] = True
    return TimingCheck(
        operations=operations.without_times(wrong),
        wrong=int(np.count_nonzero(wrong)),
        communicators=frozenset(np.flatnonzero(mixed).tolist()),
    )
