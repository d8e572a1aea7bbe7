"""The convention by which collectives compare with a link's bandwidth."""

from __future__ import annotations


def bus_factor(operation: str, ranks: int) -> float:
    """What nccl-tests multiplies bytes a second by, so that operations compare with a link's bandwidth.

    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    if operation == "AllReduce":
        return 2 * (ranks - 1) / ranks
    if operation in {"AllGather", "ReduceScatter", "AlltoAll"}:
        return (ranks - 1) / ranks
    return 1.0
