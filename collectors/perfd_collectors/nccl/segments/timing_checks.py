"""Finds operations for which NCCL reports the GPU times of other operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfd_collectors.nccl.segments.plugin_records import Operation, OperationTiming

_MIN_PAIRS = 20
"""Pairs of consecutive kernels before a communicator is judged. Chosen, not measured."""
_MAX_OVERLAPPING_RATIO = 0.25
"""Of the pairs, how many may overlap: none of 12,519 measured operations did with correct times."""
_MIN_OVERLAP_NS = 1_000
"""Shorter overlaps do not count. Chosen, not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingCheck:
    """Operations, and those of them whose times are wrong."""

    operations: Sequence[Operation]
    """All of them; those with the times of other kernels as if NCCL had reported none."""
    wrong: int
    """How many of them those are."""
    communicators: frozenset[int]
    """Indices of the communicators with so many wrong times that none can be trusted."""


def check_times(operations: Iterable[Operation]) -> TimingCheck:
    """Take the times from operations that cannot have them: kernels of one communicator run in sequence.

    NCCL matches timestamps to kernels by a work counter per channel, kept separately by host and GPU. Where
    the two disagree, times belong to other work: with NCCL 2.32.3, after a Broadcast, all-reduces seemed 13
    times as long as their kernels; with NCCL 2.28.9 some receives of an all-to-all had the times of the
    previous one. Of 12,519 operations of NCCL 2.27.7, 2.28.9 and 2.30.7 without either none overlapped.
    Operations of one group share a kernel, and those of several communicators overlap legitimately.
    """
    given = list(operations)
    wrong: set[int] = set()
    communicators = set()
    for index, kernels in _kernels(given).items():
        overlapping = 0
        stops_ns = [max([given[place].gpu_stop_ns for place in members]) for members in kernels]
        for stop_ns, after in zip(stops_ns, kernels[1:], strict=False):
            early = [place for place in after if given[place].gpu_start_ns < stop_ns - _MIN_OVERLAP_NS]
            if not early:
                continue
            overlapping += len(early) == len(after)
            wrong.update(early)
        if len(kernels) > _MIN_PAIRS and overlapping > _MAX_OVERLAPPING_RATIO * (len(kernels) - 1):
            communicators.add(index)
            wrong.update(place for members in kernels for place in members)
    return TimingCheck(
        operations=given
        if not wrong
        else [without_time(one) if place in wrong else one for place, one in enumerate(given)],
        wrong=len(wrong),
        communicators=frozenset(communicators),
    )


def without_time(operation: Operation) -> Operation:
    """The same as if NCCL had reported no time on the GPU."""
    return operation._replace(timing=OperationTiming.HOST)


def _kernels(operations: Sequence[Operation]) -> dict[int, list[list[int]]]:
    """Places of the timed operations by communicator and kernel, in the order of their announcement."""
    found: dict[int, dict[tuple[int, int], list[int]]] = {}
    announced_ns = [one.start_monotonic_ns for one in operations]
    for place in sorted(range(len(operations)), key=announced_ns.__getitem__):
        one = operations[place]
        if one.timing == OperationTiming.GPU and one.duration_ns is not None:
            key = (one.group, 0 if one.group else place)
            found.setdefault(one.communicator, {}).setdefault(key, []).append(place)
    return {index: list(kernels.values()) for index, kernels in found.items()}
