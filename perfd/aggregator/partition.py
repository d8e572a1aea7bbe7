"""The part of a cluster's jobs that one aggregator of a group has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfd.model import Record
from perfd.wire.subjects import partition_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One of `count` parts, while its lease lasts."""

    number: int
    count: int
    epoch: int
    """Larger for each aggregator that gets the partition: what earlier ones still write is refused."""
    held: Callable[[], bool]
    """Whether the lease is still valid, from any thread."""

    def has(self, job: str) -> bool:
        """Whether a job, by the name that its nodes give it, is of this partition."""
        return partition_of(job, self.count) == self.number

    def own(self, records: Sequence[Record]) -> list[Record]:
        """The records of its jobs, and those that name none."""
        return [record for record in records if not (job := getattr(record, "job", None)) or self.has(job)]
