"""When operations ran by the node's clock: GPUs have clocks of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from perfd_collectors.nccl.segments.plugin_records import Operation

_READINGS = 8
"""Newest readings that count: clocks of GPUs drift by microseconds a second."""


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

    def add(self, operations: Iterable[Operation]) -> int | None:
        """Take in newer operations; what to add to a time on the GPU, None before any had one."""
        shortest_ns = min(
            [one.complete_monotonic_ns - one.gpu_stop_ns for one in operations if one.timed], default=None
        )
        if shortest_ns is not None:
            self._shortest_ns.append(shortest_ns)
        return min(self._shortest_ns, default=None)
