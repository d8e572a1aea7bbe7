"""Which partitions of a group of aggregators a batch goes to, by the jobs of its node."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from perfd.wire.subjects import partition_of

KEPT_FOR_S = 60.0
"""A job that no batch names for so long has left the node: collectors repeat what they found every 30 s."""


class PartitionRoutes:
    """All batches of a node go to the partitions of all its jobs, since samples of GPUs name none."""

    def __init__(self, partitions: int, without_job: str) -> None:
        """`without_job` is what counts as the job of a node that has none."""
        self._partitions = partitions
        self._default = frozenset({partition_of(without_job, partitions)})
        self._seen_s: dict[int, float] = {}
        self.current: frozenset[int] = self._default

    def take(self, jobs: Iterable[str], now_s: float) -> Collection[int]:
        """Note the jobs that a batch names; returns the partitions that the node has left."""
        for job in jobs:
            self._seen_s[partition_of(job, self._partitions)] = now_s
        for partition in [one for one, seen_s in self._seen_s.items() if now_s - seen_s > KEPT_FOR_S]:
            del self._seen_s[partition]
        before, self.current = self.current, frozenset(self._seen_s) or self._default
        return before - self.current
