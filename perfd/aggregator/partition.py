"""The part of a cluster's jobs that one member of a group holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from perfd.model import Record
from perfd.wire.subjects import partition_of


class SpareRows(Protocol):
    """Keeps encoded rows of the history outside of its database. Thread-safe."""

    def keep(self, body: bytes, kept: Callable[[], None]) -> None:
        """Replace what is kept, soon; returns at once, and calls `kept` once it, or something newer, is."""

    def take(self) -> bytes | None:
        """What an earlier holder kept; None for nothing. Raises `PerfdError` if that is not known now."""

    def clear(self) -> None:
        """Keep nothing any more, soon; returns at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One of `count` partitions, for one lease."""

    number: int
    count: int
    epoch: int
    """Grows with each holder, so that writes of earlier holders are refused."""
    held: Callable[[], bool]
    """Whether the lease is still valid; callable from any thread."""
    serves: Callable[[], bool]
    """Whether to make numbers: also where the lease just ended as none can be renewed or claimed. What others
    see of alerts waits until history has it, which refuses what an earlier holder writes."""
    members: Callable[[], int] = lambda: 1
    """How many aggregators the group has; callable from any thread."""
    spare: SpareRows | None = None
    """Keeps rows for the next holder while history takes none."""

    def has(self, job: str) -> bool:
        """Whether a job belongs to this partition, by the name that its nodes report."""
        return partition_of(job, self.count) == self.number

    def own(self, records: Sequence[Record]) -> list[Record]:
        """The records that name this partition's jobs or no job."""
        return [record for record in records if not (job := getattr(record, "job", None)) or self.has(job)]
