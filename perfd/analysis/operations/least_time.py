"""The least time of a collective by what its links carry, and what a measured one reaches of that.

Every byte of a ring's message passes each link `bus_factor` times (Patarasuk and Yuan 2009; nccl-tests,
doc/PERFORMANCE.md), so that the least time is message size x factor / bandwidth of the slowest link, in one
direction. NVLink SHARP and trees send less, and may be faster.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfd.analysis.operations.bus_factor import bus_factor
from perfd.errors import PerfdError

OPERATIONS = ("AllReduce", "ReduceScatter", "AllGather", "AlltoAll", "Broadcast")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastTime:
    """What a collective takes at best."""

    operation: str
    size_bytes: float
    """The whole message: of an all-gather what each rank has at the end, of a reduce-scatter at the start."""
    ranks: int | None
    """None for many: the limit that more ranks approach."""
    link_bytes_per_s: float
    """One direction."""
    bus_factor: float
    minimum_s: float
    time_s: float | None = None

    @property
    def algorithm_bytes_per_s(self) -> float | None:
        """Message size by the measured time."""
        return self.size_bytes / self.time_s if self.time_s else None

    @property
    def bus_bytes_per_s(self) -> float | None:
        """What each link carried in the measured time."""
        rate = self.algorithm_bytes_per_s
        return None if rate is None else rate * self.bus_factor

    @property
    def link_ratio(self) -> float | None:
        """Of the link's bandwidth."""
        return self.minimum_s / self.time_s if self.time_s else None


def least_time(
    operation: str,
    size_bytes: float,
    ranks: int | None,
    link_bytes_per_s: float,
    time_s: float | None = None,
) -> LeastTime:
    """The least time of one of `OPERATIONS`; raises `PerfdError` for what cannot be."""
    if operation not in OPERATIONS:
        raise PerfdError(f"{operation} is not one of {', '.join(OPERATIONS)}.")
    if size_bytes <= 0 or link_bytes_per_s <= 0 or (ranks is not None and ranks < 2):
        raise PerfdError("A collective has at least 2 ranks, more than 0 bytes and a bandwidth above 0.")
    factor = _limit(operation) if ranks is None else bus_factor(operation, ranks)
    return LeastTime(
        operation=operation,
        size_bytes=size_bytes,
        ranks=ranks,
        link_bytes_per_s=link_bytes_per_s,
        bus_factor=factor,
        minimum_s=size_bytes * factor / link_bytes_per_s,
        time_s=time_s,
    )


def _limit(operation: str) -> float:
    """The factor that more and more ranks approach."""
    return 2.0 if operation == "AllReduce" else 1.0
