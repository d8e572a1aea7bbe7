"""What one member has seen of the keys of leases and members: pure, the time is an argument."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from perfd.aggregator.group.sharing import Holder

_MEMBER, _PARTITION = "member", "partition"
_MOST_DIGITS = 20
"""Revisions have 64 bits."""
_WRITES_REMEMBERED = 32
"""Eight leases long, by four renewals each. Chosen."""
_LATE_LEASES = 0.5
"""Without a renewal for so many leases a member may be dead: leases are renewed four times each."""
_LEASES_AFTER_FAILURE = 3
"""For so many leases after the bucket can be written again, holders may renew that could not: after an
election one of them may first have to leave its server, which takes up to two. Chosen."""


@dataclass(frozen=True, slots=True)
class LeaseEntry:
    """The newest known value of a key."""

    value: Mapping[str, str]
    revision: int
    seen_s: float
    """When it was surely written, monotonic: when it was seen, or a later write of one's own was stored."""


def member_key(member: str) -> str:
    """The key that says that a member is there."""
    return f"{_MEMBER}.{member}"


def partition_key(number: int) -> str:
    """The key of a partition's lease."""
    return f"{_PARTITION}.{number}"


def lease_value(body: bytes) -> dict[str, str]:
    """The texts in a stored value; what cannot be read has none, and still ends like a lease."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {key: text for key, text in value.items() if isinstance(text, str)}


class LeaseEntries:
    """The keys as `member` knows them. Not thread-safe."""

    def __init__(self, member: str, lease_s: float) -> None:
        self._member = member
        self._lease_s = lease_s
        self._entries: dict[str, LeaseEntry] = {}
        self._gone: dict[str, int] = {}
        """Members at whose address nothing listens, or another process, and the newest revision then."""
        self._written: deque[tuple[int, float]] = deque(maxlen=_WRITES_REMEMBERED)
        """Revisions of this member's own writes, and when each was known to be stored."""

    def clear(self) -> None:
        """Forget all, before they are read again."""
        self._entries.clear()
        self._gone.clear()
        self._written.clear()

    def see(self, key: str, value: Mapping[str, str], revision: int, now_s: float) -> None:
        """Note a key's value, unless a newer one is known."""
        if revision >= (self.revision(key) or 0):
            # It was stored before what this member wrote after it, however late it is seen.
            stored_s = next((at_s for number, at_s in self._written if number > revision), now_s)
            entry = self._entries[key] = LeaseEntry(value, revision, min(stored_s, now_s))
            if revision > self._gone.get(_member_of(key, entry), revision):
                del self._gone[_member_of(key, entry)]
            if key.startswith(_MEMBER):
                self._gone |= dict.fromkeys(self._replaced_by(entry), revision)

    def forget(self, key: str) -> None:
        """Note that a key is gone."""
        self._entries.pop(key, None)

    def forget_own(self, number: int) -> None:
        """Forget a partition's lease that this member has given up or lost; the next holder's stays."""
        entry = self._entries.get(partition_key(number))
        if entry is not None and entry.value.get("member") == self._member:
            self.forget(partition_key(number))

    def seen_s(self, key: str) -> float:
        """When the newest value of a key was seen; infinitely long ago without one."""
        entry = self._entries.get(key)
        return float("-inf") if entry is None else entry.seen_s

    def revision(self, key: str) -> int | None:
        """The newest known revision of a key; None without one."""
        entry = self._entries.get(key)
        return None if entry is None else entry.revision

    def divided_otherwise(self, partitions: int) -> Iterator[LeaseEntry]:
        """The entries of members whose group has another number of partitions."""
        for entry in self._entries.values():
            if entry.value.get("partitions", str(partitions)) != str(partitions):
                yield entry

    def valid(
        self, now_s: float, writable_since_s: float, recovered_s: float = float("-inf")
    ) -> tuple[dict[str, str], dict[int, Holder]]:
        """Addresses of the other members, and the partitions that they hold.

        What was not renewed for a lease counts no longer, but only time in which this member could write:
        before, the others may not have been able to renew either. After writes that failed until
        `recovered_s`, they have some leases longer. Who is `gone` counts no longer at once. Members that do
        not count are forgotten.
        """
        members: dict[str, str] = {}
        holders: dict[int, Holder] = {}
        for key, entry in tuple(self._entries.items()):
            kind, _, name = key.partition(".")
            if not self._counts(key, entry, now_s, writable_since_s, recovered_s):
                if kind == _MEMBER:
                    self.forget(key)
                continue
            member, address = entry.value.get("member", ""), entry.value.get("address", "")
            if kind == _MEMBER and name != self._member:
                members[name] = address
            elif kind == _PARTITION and _is_number(name) and member != self._member:
                stored = entry.value.get("epoch", "")
                epoch = int(stored) if _is_number(stored) else entry.revision
                holders[int(name)] = Holder(member=member, address=address, epoch=epoch)
        return members, holders

    def overdue(self, now_s: float, writable_since_s: float, recovered_s: float) -> dict[str, str]:
        """The addresses of members of which two renewals are missing, and that count nevertheless."""
        return {
            _member_of(key, entry): entry.value.get("address", "")
            for key, entry in self._entries.items()
            if max(entry.seen_s, writable_since_s) < now_s - _LATE_LEASES * self._lease_s
            and self._counts(key, entry, now_s, writable_since_s, recovered_s)
            and _member_of(key, entry) not in self._gone
        }

    def gone(self, member: str) -> None:
        """Note that nothing listens at a member's address: what it held is free until it renews that."""
        known = [entry.revision for entry in self._entries.values()] + [number for number, _ in self._written]
        self._gone[member] = max(known, default=0)

    def wrote(self, revision: int, now_s: float) -> None:
        """Note a write of this member's own that is stored."""
        if self._written and revision < self._written[-1][0]:
            # The bucket was made anew.
            self._written.clear()
        self._written.append((revision, now_s))

    def _replaced_by(self, entry: LeaseEntry) -> set[str]:
        """The earlier processes at a member's address."""
        return {
            _member_of(key, other)
            for key, other in self._entries.items()
            if other.revision < entry.revision
            and key.startswith(_MEMBER)
            and other.value.get("address") == entry.value.get("address")
        }

    def _counts(
        self, key: str, entry: LeaseEntry, now_s: float, writable_since_s: float, recovered_s: float
    ) -> bool:
        gone = _member_of(key, entry) in self._gone
        if max(entry.seen_s, writable_since_s) >= now_s - self._lease_s:
            # Of a lease that cannot be read the holder is unknown.
            return not (gone and entry.value.get("address"))
        return not gone and recovered_s >= now_s - _LEASES_AFTER_FAILURE * self._lease_s


def _member_of(key: str, entry: LeaseEntry) -> str:
    kind, _, name = key.partition(".")
    return name if kind == _MEMBER else entry.value.get("member", "")


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS
