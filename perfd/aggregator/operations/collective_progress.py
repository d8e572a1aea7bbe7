"""How far each rank of a job is on each communicator."""

from __future__ import annotations

from dataclasses import replace

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.model import CollectiveProgress


class ProgressRows:
    """The newest report of each rank, communicator and source."""

    def __init__(self, limits: Limits, counters: AggregatorCounters) -> None:
        self._limits = limits
        self._counters = counters
        self._newest: dict[tuple[int, str, str], CollectiveProgress] = {}
        self._members: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._member_cells = 0

    def put(self, progress: CollectiveProgress) -> None:
        """Take a rank's report in the place of its earlier one."""
        progress = self._with_known_members(progress)
        key = (progress.rank, progress.communicator, progress.source)
        if key not in self._newest and len(self._newest) >= self._limits.progress_per_job:
            self._counters.rejected["progress_per_job"] += 1
            return
        self._newest[key] = progress

    def _with_known_members(self, progress: CollectiveProgress) -> CollectiveProgress:
        """Each rank of a communicator reports all members: one list of them is kept."""
        members = tuple(progress.members)
        known = self._members.get(members)
        if known is None:
            if self._member_cells + len(members) > self._limits.members_per_job:
                self._counters.rejected["members_per_job"] += 1
                return replace(progress, members=())
            self._member_cells += len(members)
            known = self._members[members] = members
        return progress if progress.members is known else replace(progress, members=known)

    def clear(self) -> None:
        """Forget how far ranks are: the job started again."""
        self._newest.clear()
        self._members.clear()
        self._member_cells = 0

    def newest(self) -> tuple[CollectiveProgress, ...]:
        """One entry per rank, communicator and source."""
        return tuple(self._newest.values())
