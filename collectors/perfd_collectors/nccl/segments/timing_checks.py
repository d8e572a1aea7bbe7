"""Whether the times on the GPU that NCCL tells are those of its operations."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from perfd_collectors.nccl.segments.operations import Operation, OperationTiming

_LEAST = 20
_MOST_OVERLAPPING = 0.25
_OVERLAP_NS = 1_000


def mixed_up(operations: Iterable[Operation]) -> set[int]:
    """Communicators with operations that overlap on the GPU, where NCCL runs one kernel after another.

    NCCL finds the times of a kernel by the number of the work on its channel, which host and GPU count each
    for itself. Once they count differently, every time is that of some other work: seen with NCCL 2.32.3, all
    of whose all-reduces were 13 times as long as their kernels after a Broadcast. Of 12,519 operations of
    2.27.7, 2.28.9 and 2.30.7 none overlapped. Operations of one group share a kernel.
    """
    of_communicator: dict[int, list[Operation]] = {}
    for one in operations:
        if one.timing == OperationTiming.GPU and not one.incomplete:
            of_communicator.setdefault(one.communicator, []).append(one)
    return {index for index, members in of_communicator.items() if _overlap(members)}


def _overlap(operations: list[Operation]) -> bool:
    ordered = sorted(operations, key=lambda one: one.start_monotonic_ns)
    pairs = [
        (before, after)
        for before, after in pairwise(ordered)
        if not before.group or before.group != after.group
    ]
    overlapping = sum(after.gpu_start_ns < before.gpu_stop_ns - _OVERLAP_NS for before, after in pairs)
    return len(pairs) >= _LEAST and overlapping > _MOST_OVERLAPPING * len(pairs)
