"""Numbers read at some instants, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """What a row of a `SampleTable` is about; it says how to read its `entity`."""

    GPU = "gpu"
    """One GPU of the node; the entity is its NVML index (a MIG slice: `0/3`)."""
    NODE = "node"
    """The node as a whole; the entity is empty."""
    NIC = "nic"
    """A network interface or InfiniBand port; the entity is its name (`eth0`, `mlx5_0/1`)."""
    DISK = "disk"
    """A block device; the entity is its name."""
    RANK = "rank"
    """One rank of a job; the entity is `job/rank`."""
    SERVER = "server"
    """A serving engine; the entity is its name or `host:port`."""


class ColumnKind(StrEnum):
    """How Prometheus should read a column."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTable:
    """Numbers read at some instants: n rows by named columns.

    The metric name ends in its unit. NaN is "absent": a column has a value for
    each row, so absence needs a number that is none.
    """

    scope: Scope
    times_unix_ns: Sequence[int]
    entities: Sequence[str]
    columns: Mapping[str, Sequence[float]]
