"""Up to where an agent has read a process's operations, for the agent after it."""

from __future__ import annotations

import msgspec

from perfd_collectors.nccl.sampling import BusyTime


class RankTotals(msgspec.Struct):
    """What is counted of one rank of the process."""

    operations: int = 0
    busy: BusyTime = msgspec.field(default_factory=BusyTime)


class SegmentProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Up to where a segment was reported, and its counters then: where the next agent resumes."""

    positions: dict[int, int]
    reported_unix_ns: int
    lost: int
    untimed: int
    ranks: dict[int, RankTotals]
