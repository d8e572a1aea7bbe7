"""What a dimension's collectives reach of what their links allow, in words."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.analysis.collectives.communicator_totals import NcclKind
from perfd.analysis.data.job_data import Method
from perfd.analysis.layout import WORLD

_MOST = 8
"""Kinds of operations in one text, those that take the most time."""
_LEAST = 0.01
"""Of all time, in kernels: what takes less is not worth a line."""


def busiest(kinds: Sequence[NcclKind]) -> list[NcclKind]:
    """Those that take most of the time, and of which something is known."""
    reported = [
        kind
        for kind in kinds
        if (kind.bus_bytes_per_s is not None or kind.latency_bound) and (kind.kernel_ratio or 0.0) >= _LEAST
    ]
    return sorted(reported, key=lambda kind: -(kind.kernel_ratio or 0.0))[:_MOST]


def bandwidth_words(kind: NcclKind) -> str:
    """A sentence: the bandwidth beside what links allow, or that messages are too small for it."""
    groups = "over all ranks" if kind.group == WORLD else f"of {kind.group or 'unnamed'} groups"
    name = f"{kind.operation} {groups}{_method(kind.method)}"
    if kind.latency_bound and kind.size_bytes is not None and kind.transfer_s is not None:
        return (
            f"{name} moves {_size(kind.size_bytes)} at a time, too little for bandwidth to matter: it takes"
            f" {1e6 * kind.transfer_s:.0f} µs, and NCCL assumes a latency of"
            f" {1e6 * (kind.latency_s or 0.0):.0f} µs."
        )
    if kind.bus_bytes_per_s is None:
        return f"What {name} reaches is not known."
    reached = f"{name} reaches {_speed(kind.bus_bytes_per_s)} of bus bandwidth while data moves"
    if kind.expected_bus_bytes_per_s is None:
        return f"{reached}; what its links allow is not known."
    allowed = f"{_speed(kind.expected_bus_bytes_per_s)} that its links allow ({kind.expected_source})"
    return f"{reached}, of {allowed}."


def _method(method: Method | None) -> str:
    """As `NCCL_ALGO` and `NCCL_PROTO` spell it."""
    if method is None:
        return ""
    channels = [f"{method.channels} channels"] if method.channels is not None else []
    return f" ({', '.join([method.algorithm, method.protocol, *channels])})"


def _speed(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g} GB/s"


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.3g} MB" if size_bytes >= 1e5 else f"{size_bytes / 1e3:.3g} kB"
