"""Groups whose transfers take far longer than they could: the fault of a link, not of a rank.

A transfer is what is left of an operation when all waiting is taken off, so a slow rank cannot make it
longer; a slow link, a path around the fast one, or other traffic on it can. What a transfer could take is
known in three ways: from the communicator's own earlier operations, from its sisters (groups of the same
dimension and size with the same messages), and inside a node from the links of its GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from perfd.analysis.data.job_data import Bools, Floats
from perfd.analysis.data.robust_stats import median, over_last, plain_median
from perfd.analysis.operations.bandwidth_model import BandwidthModel
from perfd.analysis.operations.bus_factor import bus_factor
from perfd.analysis.operations.communicator_waits import MATCHED_OPERATIONS, CommunicatorBatch
from perfd.thresholds import THRESHOLDS

_FEWEST_OPERATIONS = 8
"""Of a group; the median of fewer is not trusted. Chosen."""
_FEWEST_SISTERS = 3
"""With more groups of one kind and size, their median is what is usual. Chosen."""


class Reference(StrEnum):
    """What a group's transfers are held against."""

    HISTORY = "history"
    SISTERS = "sisters"
    LINKS = "links"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowGroup:
    """One communicator whose transfers take much longer than they could."""

    communicator: str
    group: str | None
    operation: str
    ranks: Sequence[int]
    reference: Reference
    slowdown_ratio: float
    """Its transfers by those of the reference."""
    bus_bytes_per_s: float
    expected_bytes_per_s: float
    """Bus bandwidth of the reference."""
    lost_ratio: float
    """Of all time."""


def slow_groups(
    stacks: Sequence[CommunicatorBatch], expected: Sequence[BandwidthModel]
) -> tuple[SlowGroup, ...]:
    """All of them, the costliest first; `expected` is what the links of each stack allow."""
    found = [
        slow
        for stack, of_links in zip(stacks, expected, strict=True)
        if stack.operation in MATCHED_OPERATIONS
        for slow in _of(stack, of_links)
    ]
    return tuple(sorted(found, key=lambda slow: -slow.lost_ratio))


def _of(stack: CommunicatorBatch, of_links: BandwidthModel) -> list[SlowGroup]:
    best, best_size = stack.collectives.best_s_per_byte, stack.collectives.best_size_bytes
    largest = np.fmax.reduce(stack.size_bytes, axis=1, initial=0.0)
    large = stack.size_bytes >= np.maximum(largest / 2, 1)[:, None]
    pace = np.where(large, stack.parts.transfer_s / np.where(large, stack.size_bytes, 1), np.nan)
    enough = np.isfinite(pace).sum(axis=1) >= _FEWEST_OPERATIONS
    pace_s_per_byte = np.where(enough, median(pace, axis=1), np.nan)
    ranks = stack.ranks.shape[1]
    factor = bus_factor(stack.operation, ranks)
    bus = factor / np.where(pace_s_per_byte > 0, pace_s_per_byte, np.nan)
    # Of a small message the pace says how long operations take, and nothing of links.
    bus[of_links.latency_bound(largest)] = np.nan
    bulk = (largest >= THRESHOLDS.slow_link_message_bytes) & ~of_links.crossing
    # A job may send once, when it starts, what is far larger than all that comes later.
    best = np.where(largest >= best_size / 2, best, np.nan)
    # What a communicator can do, by each way to know it; NaN where that way is closed.
    references = (
        (Reference.HISTORY, factor / best, THRESHOLDS.slow_link_ratio),
        (Reference.SISTERS, _of_sisters(stack, bus, largest), THRESHOLDS.slow_link_ratio),
        (
            Reference.LINKS,
            np.where(bulk, of_links.bus_bytes_per_s, np.nan),
            1 / THRESHOLDS.slow_link_nvlink_ratio,
        ),
    )
    transfer = stack.blames.transfer_s
    in_kernels = transfer + over_last(np.add, stack.blames.waited_s) / ranks
    in_kernels[in_kernels <= 0] = np.nan
    moving = over_last(np.add, stack.kernel_ratio) / ranks * transfer / in_kernels
    return [
        slow
        for row in _suspects(references, bus)
        if (slow := _worst(stack, row, references, bus, moving)) is not None
    ]


def _suspects(references: Sequence[tuple[Reference, Floats, float]], bus: Floats) -> list[int]:
    suspected: Bools = np.zeros(len(bus), dtype=np.bool_)
    for _, expected, limit in references:
        suspected |= expected >= limit * bus
    return [int(row) for row in np.flatnonzero(suspected)]


def _worst(
    stack: CommunicatorBatch,
    row: int,
    references: Sequence[tuple[Reference, Floats, float]],
    bus: Floats,
    moving: Floats,
) -> SlowGroup | None:
    """The first reference that the group falls short of, if that costs the job something."""
    for reference, expected, limit in references:
        slowdown = float(expected[row] / bus[row])
        if not slowdown >= limit:
            continue
        lost = float(moving[row]) * (1 - 1 / slowdown)
        if not lost >= THRESHOLDS.slow_link_cost_ratio:
            continue
        return SlowGroup(
            communicator=stack.collectives.communicators[row],
            group=stack.names[row],
            operation=stack.operation,
            ranks=tuple(stack.ranks[row].tolist()),
            reference=reference,
            slowdown_ratio=slowdown,
            bus_bytes_per_s=float(bus[row]),
            expected_bytes_per_s=float(expected[row]),
            lost_ratio=lost,
        )
    return None


def _of_sisters(stack: CommunicatorBatch, bus: Floats, largest: Floats) -> Floats:
    """For each communicator, the median of those of the same dimension with messages of its size."""
    expected = np.full(len(bus), np.nan)
    for name in stack.distinct_names - {None}:
        alike = stack.named(name) & np.isfinite(bus)
        size = plain_median(largest[alike]) if alike.any() else 0.0
        alike &= (largest >= size / 2) & (largest <= 2 * size)
        if np.count_nonzero(alike) > _FEWEST_SISTERS:
            expected[alike] = plain_median(bus[alike])
    return expected
