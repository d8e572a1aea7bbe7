"""Decides which partitions a member claims and releases, and whether a lease is valid: pure."""

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
    """The revision of its claim."""
    revision: int
    """The revision of its newest renewal, which the next one must name."""
    valid_until_s: float
    """Monotonic, counted from sending the renewal: earlier than the server's, which is from storing it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The member that holds a partition, according to the bucket."""

    member: str
    address: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """The state of the group as one member sees it; replaced on each change."""

    connected: bool = False
    members: Mapping[str, str] = field(default_factory=dict)
    """Address of each member."""
    holders: Mapping[int, Holder] = field(default_factory=dict)
    """By partition; absent if its lease has expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Partitions that a member should claim and release now."""

    claim: Sequence[int] = ()
    release: Sequence[int] = ()


def wanted(
    partitions: int,
    members: Collection[str],
    holders: Mapping[int, str],
    member: str,
    *,
    settled: bool = True,
) -> Wanted:
    """The free partitions that `member` should claim, and the one of its own that it should release.

    Each member's share is the same number or one more. Members that hold the most keep the extra one, to
    move as few as possible. Each member claims free partitions in its own order, to avoid conflicts.
    A partition that moves is not served for a moment: none does while there are free ones, or before the
    members are `settled`, so that takeovers do not wait for it.
    """
    held = Counter(holders.values())
    ranking = sorted({*members, member}, key=lambda name: (-held[name], name))
    fewest, more = divmod(partitions, len(ranking))
    quota = fewest + (ranking.index(member) < more)
    if held[member] < quota:
        free = [number for number in range(partitions) if number not in holders]
        free.sort(key=lambda number: partition_of(f"{member}/{number}", 1 << 32))
        return Wanted(claim=free[: quota - held[member]])
    if not settled or len(holders) < partitions:
        return Wanted()
    own = sorted(number for number, name in holders.items() if name == member)
    return Wanted(release=own[quota : quota + 1])


def has_lease_time(ttl_s: float | None, lease_s: float) -> bool:
    """Whether a bucket's TTL is `lease_s`, to within the rounding of the conversion to nanoseconds."""
    return ttl_s is not None and math.isclose(ttl_s, lease_s, abs_tol=1e-6)


def is_valid(holding: Holding | None, epoch: int, now_s: float) -> bool:
    """Whether the lease with this epoch is still held."""
    return holding is not None and holding.epoch == epoch and now_s < holding.valid_until_s
