"""Tables of numbers sampled over time."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import nan


class Scope(StrEnum):
    """The kind of entity of the rows of a `SampleTable`, which determines the format of `entity`."""

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
    """The type of a column in Prometheus."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(slots=True, eq=False, repr=False)
class ColumnBlock(Mapping[str, Sequence[float]]):
    """Columns of one length in one block of doubles, one column after the other."""

    names: tuple[str, ...]
    """All different."""
    block: bytes
    """In the machine's byte order."""
    rows: int

    def __getitem__(self, name: str) -> Sequence[float]:
        if name not in self.names:
            raise KeyError(name)
        size_bytes = 8 * self.rows
        start = self.names.index(name) * size_bytes
        return array("d", self.block[start : start + size_bytes])

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"ColumnBlock({dict(self)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTable:
    """Samples as n rows by named columns; one row per time and entity.

    The last word of a column's name is its unit. NaN means absent, because each
    column has a value per row.
    """

    scope: Scope
    times_unix_ns: Sequence[int]
    entities: Sequence[str]
    columns: Mapping[str, Sequence[float]]

    @classmethod
    def of_rows(
        cls, scope: Scope, time_unix_ns: int, rows: Mapping[str, Mapping[str, float]]
    ) -> SampleTable | None:
        """Values by entity and column at one time, of the entities that have any; None if none has."""
        present = {entity: values for entity, values in rows.items() if values}
        if not present:
            return None
        names = dict.fromkeys(name for values in present.values() for name in values)
        return cls(
            scope=scope,
            times_unix_ns=[time_unix_ns] * len(present),
            entities=list(present),
            columns={name: [values.get(name, nan) for values in present.values()] for name in names},
        )

    @classmethod
    def of_node(cls, time_unix_ns: int, values: Mapping[str, float]) -> SampleTable:
        """Values by column of the node as a whole, at one time."""
        columns = {name: [float(value)] for name, value in values.items()}
        return cls(scope=Scope.NODE, times_unix_ns=[time_unix_ns], entities=[""], columns=columns)
