"""Who should have which partition, and how long a lease is valid: pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from perfd.wire.subjects import partition_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A lease of this aggregator."""

    epoch: int
    """The revision with which it was obtained."""
    revision: int
    """That of its newest renewal, which the next one has to name."""
    valid_until_s: float
    """Monotonic. The server counts from when it stored the renewal, which is later than when it was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The member that has a partition, according to the bucket."""

    member: str
    address: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """What an aggregator knows of its group; replaced at each change."""

    connected: bool = False
    members: Mapping[str, str] = field(default_factory=dict)
    """Addresses by name."""
    holders: Mapping[int, Holder] = field(default_factory=dict)
    """By partition; none where the lease is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an aggregator should do now."""

    claim: Sequence[int] = ()
    release: Sequence[int] = ()


def wanted(partitions: int, members: Collection[str], holders: Mapping[int, str], member: str) -> Wanted:
    """Which free partitions `member` should claim, and which of its own it should give to others.

    All have the same number, or one more. Those that have most keep the one more, so that nothing moves
    without need; the free ones are tried in an order of the member's own, so that few want the same.
    """
    held = Counter(holders.values())
    ranking = sorted({*members, member}, key=lambda name: (-held[name], name))
    fewest, more = divmod(partitions, len(ranking))
    quota = fewest + (ranking.index(member) < more)
    if held[member] < quota:
        free = [number for number in range(partitions) if number not in holders]
        free.sort(key=lambda number: partition_of(f"{member}/{number}", 1 << 32))
        return Wanted(claim=free[: quota - held[member]])
    own = sorted(number for number, name in holders.items() if name == member)
    return Wanted(release=own[quota:])


def has_lease_time(ttl_s: float | None, lease_s: float) -> bool:
    """Whether keys of a bucket live as long as leases; nanoseconds are lost when it is made."""
    return ttl_s is not None and math.isclose(ttl_s, lease_s, abs_tol=1e-6)


def is_valid(holding: Holding | None, epoch: int, now_s: float) -> bool:
    """Whether what was begun with `epoch` may go on."""
    return holding is not None and holding.epoch == epoch and now_s < holding.valid_until_s
