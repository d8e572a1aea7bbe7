"""When operations ran by the node's clock: GPUs have clocks of their own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from perfd_collectors.nccl.operations.operation_columns import Operations

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

    def add(self, operations: Operations) -> int | None:
        """Take in newer operations; what to add to a time on the GPU, None before any had one."""
        if operations.timed.any():
            delays_ns = operations.column("complete_monotonic_ns") - operations.column("gpu_stop_ns")
            self._shortest_ns.append(int(delays_ns[operations.timed].min()))
        return min(self._shortest_ns, default=None)
