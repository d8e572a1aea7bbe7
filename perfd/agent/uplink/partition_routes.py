"""Selects the partitions to which a node's batches are published, by the node's jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from perfd.wire.subjects import partition_of

KEPT_FOR_S = 60.0
"""A job that no batch names for this long has left the node: collectors repeat what they found every 30 s."""


class PartitionRoutes:
    """All of a node's batches go to the partitions of all its jobs, since GPU samples name no job."""

    def __init__(self, partitions: int, without_job: str) -> None:
        """`without_job` stands in for the job's name on a node without jobs."""
        self._partitions = partitions
        self._default = frozenset({partition_of(without_job, partitions)})
        self._seen_s: dict[int, float] = {}
        self.current: frozenset[int] = self._default

    def take(self, jobs: Iterable[str], now_s: float) -> Collection[int]:
        """Record the jobs that a batch names; returns partitions that the node no longer has jobs in."""
        for job in jobs:
            self._seen_s[partition_of(job, self._partitions)] = now_s
        for partition in [one for one, seen_s in self._seen_s.items() if now_s - seen_s > KEPT_FOR_S]:
            del self._seen_s[partition]
        before, self.current = self.current, frozenset(self._seen_s) or self._default
        return before - self.current
