"""Reduces a process's operations to one record per window, communicator and kind of operation.

GPUs have clocks of their own: `GpuClock` says when operations ran by the node's.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from perfd.model import CollectiveTimes, TimingSource
from perfd_collectors.nccl.operations.operation_columns import (
    POINT_TO_POINT,
    Flags,
    Floats,
    Integers,
    Operation,
    Operations,
    OperationTiming,
    Places,
    kernels_of,
)
from perfd_collectors.nccl.segments import (
    ALGORITHMS,
    DATATYPE_BYTES,
    FUNCTIONS,
    PROTOCOLS,
    UNTIMED_KERNEL_NS,
    Communicator,
)

_READINGS = 8
"""Newest readings that count: clocks of GPUs drift by microseconds a second."""
_SOURCES: Mapping[int, TimingSource] = {
    OperationTiming.GPU: TimingSource.GPU,
    OperationTiming.PROXY: TimingSource.PROXY,
}
_PART_COUNTED = frozenset({"AllGather", "ReduceScatter", "AlltoAll", "Gather", "Scatter"})
"""For these, NCCL reports the element count of one rank's part: the whole is that times the ranks."""
_BYTES = np.zeros(256)
"""Of an element, by data type; 0 if the type is unknown."""
_MAX_NUMBER = float(1 << 61)
"""Sizes and clocks from here on are garbage: they would overflow."""


@dataclass(frozen=True, slots=True)
class GpuClock:
    """How far the clock of a rank's kernels is from those of its node."""

    to_monotonic_ns: int
    """What to add to a time on the GPU for that of the node's monotonic clock."""
    monotonic_to_unix_ns: int


class GpuClockReadings:
    """Compares the clock of a rank's kernels with the node's by the operations that have ended.

    The host notices each end a little after it, by its own clock: the shortest such distance of the newest
    operations is that of the clocks, exact to the shortest delay.
    """

    def __init__(self) -> None:
        self._shortest_ns: deque[int] = deque(maxlen=_READINGS)

    def add(self, operations: Operations) -> int | None:
        """Take in newer operations; what to add to a time on the GPU, None before any had one."""
        if operations.timed.any():
            delays_ns = operations.column("complete_monotonic_ns") - operations.column("gpu_stop_ns")
            self._shortest_ns.append(int(delays_ns[operations.timed].min()))
        return min(self._shortest_ns, default=None)


_BYTES[: len(DATATYPE_BYTES)] = DATATYPE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationWindow:
    """The rank and job of the operations, and the interval in which they were read."""

    job: str
    rank: int
    start_unix_ns: int
    end_unix_ns: int
    clock: GpuClock | None = None
    """Of the rank's kernels; without it, it is unknown when operations began."""


def reduce_operations(
    operations: Operations,
    communicators: Mapping[int, Communicator],
    window: OperationWindow,
    *,
    keep_one_in: int = 1,
) -> list[CollectiveTimes]:
    """One record per communicator, operation and peer, from the operations that have a duration.

    Collectives of one group share a kernel, hence a duration: they count as one, with the bytes of all and
    the first one's sequence number. With `keep_one_in` of n, the columns hold only sequence numbers that are
    multiples of n: the same ones on every rank, so that ranks can still be matched. Totals are over all.
    """
    measured = operations if operations.measured.all() else operations.select(operations.measured)
    if not len(measured):
        return []
    kinds = _kinds(measured)
    # Sends and receives of a group have times of their own.
    groups = np.where(measured.point_to_point, np.uint64(0), measured.column("group"))
    kernels = kernels_of(kinds, groups)
    ordered, kinds, first = measured.select(kernels.order), kinds[kernels.order], kernels.first
    begins = np.flatnonzero(np.diff(kinds[first], prepend=-1))
    starts_ns = np.minimum.reduceat(ordered.column("gpu_start_ns"), first)
    stops_ns = np.maximum.reduceat(ordered.column("gpu_stop_ns"), first)
    durations_ns = stops_ns + UNTIMED_KERNEL_NS - starts_ns
    sequences = ordered.column("operation_sequence")
    kept = np.logical_or.reduceat(sequences % np.uint64(keep_one_in) == 0, first)
    sizes, sized = _sizes(ordered, kinds, first[begins], communicators)
    sizes_bytes = np.add.reduceat(sizes, first)
    bounds = [*begins.tolist(), len(first)]
    kept_bounds = np.searchsorted(np.flatnonzero(kept), bounds).tolist()
    columns = _Columns(
        sequences=np.minimum.reduceat(sequences, first)[kept].tolist(),
        durations_ns=durations_ns[kept].tolist(),
        sizes_bytes=sizes_bytes[kept].astype(np.int64).tolist(),
        starts_ns=starts_ns[kept].tolist(),
        **_on_node(starts_ns[kept], ordered.column("start_monotonic_ns")[first][kept], kept_bounds, window),
    )
    elements = ordered.column("elements")[first]
    largest = [low + int(np.argmax(elements[low:high])) for low, high in pairwise(bounds)]
    totals = zip(
        ordered.select(first[begins]).rows(),
        ordered.select(first[largest]).rows(),
        np.diff(first[begins], append=len(ordered)).tolist(),
        np.where(sized, np.add.reduceat(sizes_bytes, begins), math.nan).tolist(),
        (np.add.reduceat(durations_ns, begins, dtype=np.float64) / 1e9).tolist(),
        (np.minimum.reduceat(durations_ns, begins) / 1e9).tolist(),
        (np.maximum.reduceat(durations_ns, begins) / 1e9).tolist(),
        [slice(low, high) for low, high in pairwise(kept_bounds)],
        strict=True,
    )
    return [_record(_Kind(*total), columns, communicators, window) for total in totals]


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is known of all operations of one kind."""

    first: Operation
    largest: Operation
    count: int
    total_bytes: float
    """NaN if unknown."""
    total_s: float
    min_s: float
    max_s: float
    kept: slice
    """Where its kernels are in the columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """One value per kept kernel, those of one kind adjacent."""

    sequences: Sequence[int]
    durations_ns: Sequence[int]
    sizes_bytes: Sequence[int]
    starts_ns: Sequence[int]
    increments_us: Sequence[int] = ()
    queued_us: Sequence[int] = ()


def _record(
    kind: _Kind, columns: _Columns, communicators: Mapping[int, Communicator], window: OperationWindow
) -> CollectiveTimes:
    first, kept = kind.first, kind.kept
    communicator = communicators.get(first.communicator)
    point_to_point = bool(first.flags & POINT_TO_POINT)
    unsized = math.isnan(kind.total_bytes)
    return CollectiveTimes(
        job=window.job,
        rank=window.rank,
        communicator=_identity(communicator),
        communicator_rank=communicator.rank if communicator else None,
        communicator_size=communicator.ranks if communicator else None,
        communicator_name=communicator.name if communicator else "",
        operation=_name(FUNCTIONS, first.function),
        peer=first.peer_or_root if point_to_point else None,
        timing=_SOURCES[first.timing],
        start_unix_ns=window.start_unix_ns,
        end_unix_ns=window.end_unix_ns,
        count=kind.count,
        total_bytes=None if unsized else kind.total_bytes,
        total_s=kind.total_s,
        min_s=kind.min_s,
        max_s=kind.max_s,
        algorithm=_name(ALGORITHMS, kind.largest.algorithm),
        protocol=_name(PROTOCOLS, kind.largest.protocol),
        channels=kind.largest.channels or None,
        sequences=columns.sequences[kept],
        durations_ns=columns.durations_ns[kept],
        sizes_bytes=[] if unsized else columns.sizes_bytes[kept],
        gpu_starts_ns=columns.starts_ns[kept]
        if point_to_point and first.timing == OperationTiming.GPU
        else [],
        start_increments_us=columns.increments_us[kept],
        queued_us=columns.queued_us[kept],
    )


def _kinds(operations: Operations) -> Integers:
    """Communicator, function, clock and, of sends and receives, peer, numbered as they come."""
    peer = operations.column("peer_or_root").astype(np.int64) & 0xFFFF_FFFF | 1 << 32
    key = operations.column("communicator").astype(np.int64)
    for name, bits in (("function", 8), ("timing", 2)):
        key = key << bits | operations.column(name)
    key = key << 33 | np.where(operations.point_to_point, peer, 0)
    _, first, kinds = np.unique(key, return_index=True, return_inverse=True)
    numbers = np.empty(len(first), dtype=np.int64)
    numbers[np.argsort(first)] = np.arange(len(first))
    return numbers[kinds]


def _sizes(
    operations: Operations, kinds: Integers, first: Places, communicators: Mapping[int, Communicator]
) -> tuple[Floats, Flags]:
    """Bytes of each whole message, as bus bandwidth counts them, and whether all of a kind are known.

    `kinds` are adjacent; `first` is where each begins.
    """
    leading = operations.select(first).rows()
    factors = np.array([_factor(one, communicators) for one in leading], dtype=np.float64)
    per_element = _BYTES[operations.column("datatype")] * factors[kinds]
    sizes = per_element * operations.column("elements")
    known = np.logical_and.reduceat((per_element > 0) & (sizes < _MAX_NUMBER), first)
    return np.where(known[kinds], sizes, 0.0), known


def _factor(operation: Operation, communicators: Mapping[int, Communicator]) -> int:
    """How many times its elements the whole message has; 0 if unknown."""
    if _name(FUNCTIONS, operation.function) not in _PART_COUNTED:
        return 1
    communicator = communicators.get(operation.communicator)
    return (communicator.ranks or 0) if communicator else 0


def _on_node(
    starts_ns: Integers, announced_ns: Integers, bounds: Sequence[int], window: OperationWindow
) -> dict[str, Sequence[int]]:
    """When kernels began by the node's clock, each after the one before, and how long they were queued.

    `bounds` are where the kernels of each kind begin, and the end of the last.
    """
    clock = window.clock
    if clock is None:
        return {}
    to_window_ns = clock.to_monotonic_ns + clock.monotonic_to_unix_ns - window.start_unix_ns
    if max(abs(to_window_ns), abs(clock.to_monotonic_ns)) >= _MAX_NUMBER:
        return {}
    starts_us = (starts_ns + to_window_ns) // 1000
    increments_us = np.diff(starts_us, prepend=0)
    begins = [low for low, high in pairwise(bounds) if low < high]
    increments_us[begins] = starts_us[begins]
    queued_us = (starts_ns + clock.to_monotonic_ns - announced_ns) // 1000
    return {"increments_us": increments_us.tolist(), "queued_us": queued_us.tolist()}


def busy_ns(operations: Operations) -> int:
    """Nanoseconds in which at least one of the operations was on the GPU: the union of their intervals.

    Operations of one group share a kernel and hence an interval, and kernels on several streams overlap, so a
    sum would count time twice.
    """
    starts_ns = operations.column("gpu_start_ns")[operations.on_gpu]
    if not len(starts_ns):
        return 0
    order = np.argsort(starts_ns)
    starts_ns = starts_ns[order]
    ends_ns = (operations.column("gpu_stop_ns")[operations.on_gpu] + UNTIMED_KERNEL_NS)[order]
    covered_until_ns = np.concatenate([starts_ns[:1], np.maximum.accumulate(ends_ns)[:-1]])
    return int(np.maximum(0, ends_ns - np.maximum(starts_ns, covered_until_ns)).sum())


def keep_one_in(operations: int, window_ns: int, max_per_s: int) -> int:
    """The sampling stride: a power of two, so that ranks with different strides still share operations."""
    allowed = max(1.0, max_per_s * window_ns / 1e9)
    keep = 1
    while operations / keep > allowed:
        keep *= 2
    return keep


def _identity(communicator: Communicator | None) -> str:
    return f"{communicator.id:x}" if communicator and communicator.id is not None else ""


def _name(names: Sequence[str], number: int) -> str:
    return names[number] if number < len(names) else ""
