"""Reduces a process's operations to one record per window, communicator and kind of operation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from perfd.model import CollectiveTimes, TimingSource
from perfd_collectors.nccl.segments.gpu_clock import GpuClock
from perfd_collectors.nccl.segments.plugin_records import (
    ALGORITHMS,
    DATATYPE_BYTES,
    FUNCTIONS,
    PROTOCOLS,
    UNTIMED_KERNEL_NS,
    Communicator,
    Operation,
    OperationTiming,
)

_SOURCES = {OperationTiming.GPU: TimingSource.GPU, OperationTiming.PROXY: TimingSource.PROXY}
# For these, NCCL reports the element count of one rank's part: the whole is that times the ranks.
_ELEMENTS = attrgetter("elements")
_PART_COUNTED = frozenset({"AllGather", "ReduceScatter", "AlltoAll", "Gather", "Scatter"})


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
    operations: Iterable[Operation],
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
    kinds: dict[tuple[int, int, int | None, int], list[Operation]] = {}
    for operation in operations:
        if operation.duration_ns is not None:
            peer = operation.peer_or_root if operation.point_to_point else None
            key = (operation.communicator, operation.function, peer, operation.timing)
            kinds.setdefault(key, []).append(operation)
    return [
        _record(_kernels(members), communicators.get(index), peer, window, keep_one_in)
        for (index, _, peer, _), members in kinds.items()
    ]


def _kernels(operations: Sequence[Operation]) -> list[list[Operation]]:
    """The operations grouped by the kernel they ran in, which NCCL calls a group."""
    if operations[0].point_to_point or len({operation.group for operation in operations} - {0}) == len(
        operations
    ):
        return [[operation] for operation in operations]
    kernels: dict[tuple[int, int], list[Operation]] = {}
    for index, operation in enumerate(operations):
        kernels.setdefault((operation.group, 0 if operation.group else index), []).append(operation)
    return list(kernels.values())


def busy_ns(operations: Iterable[Operation]) -> int:
    """Nanoseconds in which at least one of the operations was on the GPU: the union of their intervals.

    Operations of one group share a kernel and hence an interval, and kernels on several streams overlap, so a
    sum would count time twice.
    """
    intervals = sorted(
        (operation.gpu_start_ns, operation.kernel_end_ns)
        for operation in operations
        if operation.gpu_duration_ns is not None
    )
    total = covered_until = 0
    for start, stop in intervals:
        if stop > covered_until:
            total += stop - max(start, covered_until)
            covered_until = stop
    return total


def keep_one_in(operations: int, window_ns: int, max_per_s: int) -> int:
    """The sampling stride: a power of two, so that ranks with different strides still share operations."""
    allowed = max(1.0, max_per_s * window_ns / 1e9)
    keep = 1
    while operations / keep > allowed:
        keep *= 2
    return keep


class _BytesPerElement(dict[int, int]):
    """Of the whole message, by data type, as bus bandwidth counts it; 0 if type or ranks are unknown."""

    def __init__(self, function: int, communicator: Communicator | None) -> None:
        super().__init__()
        parts = _name(FUNCTIONS, function) in _PART_COUNTED
        self._ranks = (communicator.ranks if communicator else None) or 0 if parts else 1

    def __missing__(self, datatype: int) -> int:
        known = datatype < len(DATATYPE_BYTES)
        self[datatype] = DATATYPE_BYTES[datatype] * self._ranks if known else 0
        return self[datatype]


def _record(
    kernels: Sequence[Sequence[Operation]],
    communicator: Communicator | None,
    peer: int | None,
    window: OperationWindow,
    keep_one_in: int,
) -> CollectiveTimes:
    first = kernels[0][0]
    starts = [
        operations[0].gpu_start_ns
        if len(operations) == 1
        else min([operation.gpu_start_ns for operation in operations])
        for operations in kernels
    ]
    durations = [
        (
            operations[0].gpu_stop_ns
            if len(operations) == 1
            else max([operation.gpu_stop_ns for operation in operations])
        )
        + UNTIMED_KERNEL_NS
        - start
        for operations, start in zip(kernels, starts, strict=True)
    ]
    per_element = _BytesPerElement(first.function, communicator)
    sizes = [
        per_element[operations[0].datatype] * operations[0].elements
        if len(operations) == 1
        else sum([per_element[operation.datatype] * operation.elements for operation in operations])
        for operations in kernels
    ]
    all_known = 0 not in per_element.values()
    if keep_one_in == 1:
        kept = list(range(len(kernels)))
    else:
        kept = [
            i
            for i, operations in enumerate(kernels)
            if not all(operation.operation_sequence % keep_one_in for operation in operations)
        ]
    largest = max([operations[0] for operations in kernels], key=_ELEMENTS)
    increments_us, queued_us = (
        _on_node([starts[i] for i in kept], [kernels[i][0] for i in kept], window.start_unix_ns, window.clock)
        if window.clock is not None
        else ([], [])
    )
    return CollectiveTimes(
        job=window.job,
        rank=window.rank,
        communicator=_identity(communicator),
        communicator_rank=communicator.rank if communicator else None,
        communicator_size=communicator.ranks if communicator else None,
        communicator_name=communicator.name if communicator else "",
        operation=_name(FUNCTIONS, first.function),
        peer=peer,
        timing=_SOURCES[OperationTiming(first.timing)],
        start_unix_ns=window.start_unix_ns,
        end_unix_ns=window.end_unix_ns,
        count=sum(map(len, kernels)),
        total_bytes=float(sum(sizes)) if all_known else None,
        total_s=sum(durations) / 1e9,
        min_s=min(durations) / 1e9,
        max_s=max(durations) / 1e9,
        algorithm=_name(ALGORITHMS, largest.algorithm),
        protocol=_name(PROTOCOLS, largest.protocol),
        channels=largest.channels or None,
        sequences=[min([operation.operation_sequence for operation in kernels[i]]) for i in kept],
        durations_ns=[durations[i] for i in kept],
        sizes_bytes=[sizes[i] for i in kept] if all_known else [],
        gpu_starts_ns=[kernels[i][0].gpu_start_ns for i in kept]
        if peer is not None and _on_gpu(first)
        else [],
        start_increments_us=increments_us,
        queued_us=queued_us,
    )


def _on_node(
    starts_ns: Sequence[int], first: Sequence[Operation], since_unix_ns: int, clock: GpuClock
) -> tuple[list[int], list[int]]:
    """When kernels began by the node's clock, each after the one before, and how long they were queued."""
    to_us = clock.to_monotonic_ns + clock.monotonic_to_unix_ns - since_unix_ns
    starts_us = [(start + to_us) // 1000 for start in starts_ns]
    before_us = [0, *starts_us][: len(starts_us)]
    queued_us = [
        (start + clock.to_monotonic_ns - operation.start_monotonic_ns) // 1000
        for start, operation in zip(starts_ns, first, strict=True)
    ]
    return [after - before for before, after in zip(before_us, starts_us, strict=True)], queued_us


def _on_gpu(operation: Operation) -> bool:
    return operation.timing == OperationTiming.GPU


def _identity(communicator: Communicator | None) -> str:
    return f"{communicator.id:x}" if communicator and communicator.id is not None else ""


def _name(names: Sequence[str], number: int) -> str:
    return names[number] if number < len(names) else ""
