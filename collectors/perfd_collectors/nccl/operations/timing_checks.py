"""Finds operations for which NCCL reports the GPU times of other operations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd_collectors.nccl.operations.operation_columns import Operations, kernels_of

_MIN_PAIRS = 20
"""Pairs of consecutive kernels before a communicator is judged. Chosen, not measured."""
_MAX_OVERLAPPING_RATIO = 0.25
"""Of the pairs, how many may overlap: none of 12,519 measured operations did with correct times."""
_MIN_OVERLAP_NS = 1_000
"""Shorter overlaps do not count. Chosen, not measured."""


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
