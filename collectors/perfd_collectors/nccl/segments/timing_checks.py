"""Finds communicators for which NCCL reports the GPU times of other operations."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from perfd_collectors.nccl.segments.operations import Operation, OperationTiming

_MIN_PAIRS = 20
"""Pairs of consecutive operations before a communicator is judged. Chosen, not measured."""
_MAX_OVERLAPPING_RATIO = 0.25
"""Of the pairs, how many may overlap: none of 12,519 measured operations did with correct times."""
_MIN_OVERLAP_NS = 1_000
"""Shorter overlaps do not count. Chosen, not measured."""


def mistimed_communicators(operations: Iterable[Operation]) -> set[int]:
    """Indices of communicators whose operations overlap on the GPU, although their kernels run in sequence.

    NCCL matches timestamps to kernels by a work counter per channel, kept separately by host and GPU. Once
    the two disagree, all times belong to other work: with NCCL 2.32.3, after a Broadcast, all-reduces seemed
    13 times as long as their kernels. Of 12,519 operations of NCCL 2.27.7, 2.28.9 and 2.30.7 none overlapped.
    Operations of one group share a kernel.
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
    overlapping = sum(after.gpu_start_ns < before.gpu_stop_ns - _MIN_OVERLAP_NS for before, after in pairs)
    return len(pairs) >= _MIN_PAIRS and overlapping > _MAX_OVERLAPPING_RATIO * len(pairs)
