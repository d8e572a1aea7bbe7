"""Each rank's collectives, matched across ranks: what was transfer, and what was waiting for whom.

Operations match by (group, operation, sequence number) where the trace has one, else by their order within
(group, operation) when all ranks of the group show the same number of them. Of a matched operation the
shortest duration is the transfer, and what the others took longer is waiting
(perfd.analysis.operations.communicator_waits).
A pair of sends and receives matches by (sender, receiver) and order; a kernel that sends and receives
several messages is done with the last of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from perfd.analysis.operations.communicator_waits import WaitBlame, blame, split
from perfd.analysis.operations.least_time import LeastTime, least_time
from perfd.trace.breakdown.collective_instances import Instance, Key, instances
from perfd.trace.breakdown.rank_breakdown import RankTimeline
from perfd.trace.model.kernel_classes import collective_operation
from perfd.trace.model.rank_trace import Message

COMMON_END_NS = 50_000
"""The kernels of one collective end within 2 µs on the ranks of a node, except one in ten (H200, NVLink)."""
_SHORTEST_IS_TRANSFER = frozenset({"allreduce", "reducescatter", "allgather", "alltoall", "barrier"})
"""A broadcast's or a reduce's root may finish early, so its shortest duration says nothing."""

_NCCL_NAMES = {
    "allreduce": "AllReduce",
    "reducescatter": "ReduceScatter",
    "allgather": "AllGather",
    "alltoall": "AlltoAll",
}


_Way = tuple[str, int, int]
"""Of messages: group, sender and receiver."""
_Pair = dict[int, Instance]


class CollectiveMatching(StrEnum):
    """How the operations of one kind were matched across ranks."""

    SEQUENCE = "sequence"
    ORDER = "order"
    """The trace has no sequence numbers; all ranks show the same number of operations."""
    MESSAGES = "messages"
    """By sender, receiver and order."""
    NONE = "none"


@dataclass(slots=True, kw_only=True)
class _Split:
    matched: int = 0
    transfer_s: float = 0.0
    wait_s: float = 0.0
    matching: CollectiveMatching = CollectiveMatching.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """All operations of one kind in the window of one rank."""

    group: str | None
    group_ranks: tuple[int, ...]
    operation: str
    barrier: bool
    count: int
    total_s: float
    """Sum of the kernels' durations, clipped to the window."""
    exposed_s: float
    """What of that neither compute nor memory operations cover; kernels that run at one time count each."""
    size_bytes: int | None
    """Sum; None where the trace does not say."""
    transfer_s: float | None
    wait_s: float | None
    """Over the matched ones; None when none could be matched."""
    matched_count: int
    matching: CollectiveMatching

    def least_time_of(self, link_bytes_per_s: float | None) -> LeastTime | None:
        """All of them at once, against links in one direction; None where a part is unknown."""
        operation = _NCCL_NAMES.get(collective_operation(self.operation))
        known = self.size_bytes and self.transfer_s and self.matched_count == self.count and not self.barrier
        if not known or operation is None or link_bytes_per_s is None or len(self.group_ranks) < 2:
            return None
        size = float(self.size_bytes or 0)
        return least_time(operation, size, len(self.group_ranks), link_bytes_per_s, self.transfer_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWaiting:
    """Who waited for whom in the collectives of one group."""

    group: str | None
    ranks: tuple[int, ...]
    barrier: bool
    blame: WaitBlame


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """What communication was, over all ranks."""

    by_rank: Mapping[int, Sequence[CollectiveRow]]
    waiting: Sequence[GroupWaiting] = ()
    unmatched: Sequence[str] = ()
    """Sentences: what could not be matched, and why."""
    split: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """By rank: transfer and waiting of everything matched, in seconds."""
    joined: Sequence[Mapping[int, Instance]] = ()
    """Each matched collective as its ranks have it."""
    messages: Sequence[Mapping[int, Instance]] = ()
    """Each matched message as its sender and its receiver have it."""


def collectives(timelines: Mapping[int, RankTimeline]) -> Collectives:
    """Match the communication of all ranks; only ranks with all their records take part."""
    found_by_rank = {rank: instances(timeline) for rank, timeline in timelines.items()}
    complete = {rank for rank, timeline in timelines.items() if timeline.complete}
    splits: dict[tuple[int, Key], _Split] = defaultdict(_Split)
    waiting, unmatched, joined = [], [], []
    for key, members, mine in _by_key(found_by_rank, timelines):
        if key.operation == "sendrecv":
            continue
        problem = _why_not(key, members, mine, complete)
        if problem:
            unmatched.append(problem)
            continue
        matching, rows = _together(members, mine)
        durations = _durations(members, rows)
        waits = split(durations)
        joined += [row for row in rows if len(row) == len(members)]
        for at, rank in enumerate(members):
            known = waits.last_arriver >= 0
            splits[rank, key] = _Split(
                matched=int(known.sum()),
                transfer_s=float(waits.transfer_s[known].sum()),
                wait_s=float(waits.wait_s[known, at].sum()),
                matching=matching,
            )
        waiting.append(
            GroupWaiting(group=key.group or None, ranks=members, barrier=key.barrier, blame=blame(durations))
        )
    whole = {rank: found for rank, found in found_by_rank.items() if rank in complete}
    pairs = _pairs(whole)
    _split_messages(whole, pairs, splits)
    rows_by_rank = {rank: _rows(found, rank, splits) for rank, found in found_by_rank.items()}
    return Collectives(
        by_rank=rows_by_rank,
        waiting=waiting,
        unmatched=tuple(unmatched),
        split={
            rank: (
                sum(row.transfer_s or 0.0 for row in found),
                sum(row.wait_s or 0.0 for row in found),
            )
            for rank, found in rows_by_rank.items()
            if any(row.matched_count for row in found)
        },
        joined=joined,
        messages=[pair for found in pairs.values() for pair in found],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWait:
    """How long one rank waited in one collective for the rank that came last."""

    rank: int
    for_rank: int
    operation: str
    group: str
    start_ns: int
    """On the clock of the rank's trace."""
    end_ns: int


def waits_of(found: Collectives) -> list[RankWait]:
    """Each waiting in the collectives that were matched: from a rank's arrival to that of the last one."""
    waits = []
    for together in found.joined:
        last = min(together, key=lambda rank: together[rank].duration_s)
        for rank, one in together.items():
            wait_ns = (one.duration_s - together[last].duration_s) * 1e9
            if rank != last and wait_ns >= 1:
                waits.append(
                    RankWait(
                        rank=rank,
                        for_rank=last,
                        operation=one.operation,
                        group=one.group,
                        start_ns=one.start_ns,
                        end_ns=one.start_ns + round(wait_ns),
                    )
                )
    return waits


def _by_key(
    found_by_rank: Mapping[int, Sequence[Instance]], timelines: Mapping[int, RankTimeline]
) -> Iterator[tuple[Key, tuple[int, ...], dict[int, list[Instance]]]]:
    """Operations of each kind: the ranks that take part, and those of each rank that was traced."""
    for key in sorted({one.key for found in found_by_rank.values() for one in found}):
        members = key.ranks or tuple(sorted(timelines))
        mine = {
            rank: [one for one in found_by_rank[rank] if one.key == key]
            for rank in members
            if rank in found_by_rank
        }
        yield key, members, mine


def _why_not(
    key: Key, members: Sequence[int], mine: Mapping[int, Sequence[Instance]], complete: set[int]
) -> str | None:
    """Why the operations of a group cannot be matched, as a sentence; None when they can."""
    what = f"{key.operation} of {key.group or 'unnamed groups'}"
    absent = [rank for rank in members if rank not in mine]
    partial = [rank for rank in members if rank not in complete]
    counts = [len(found) for found in mine.values()] or [0]
    sequenced = all(one.sequence is not None for found in mine.values() for one in found)
    reasons = (
        (len(members) < 2, "its group has one rank" if key.ranks else "only one rank was traced"),
        (
            collective_operation(key.operation) not in _SHORTEST_IS_TRANSFER,
            "its shortest duration is not its transfer",
        ),
        (bool(absent), f"no trace of rank {absent[0] if absent else ''}"),
        (bool(partial), f"the trace of rank {partial[0] if partial else ''} lost records"),
        (
            not sequenced and len(set(counts)) > 1,
            f"the ranks show {min(counts)} to {max(counts)} of them, and there are no numbers",
        ),
        (
            not key.group and len(members) > 2 and not _end_together(list(mine.values())),
            "the traces do not say which ranks they join",
        ),
    )
    return next((f"{what}: {reason}." for holds, reason in reasons if holds), None)


def _end_together(found: Sequence[Sequence[Instance]]) -> bool:
    """Whether operations of no named group, taken in order, are one group's: those end at one instant.

    Several groups with equally many operations look like one, but for the times at which they end.
    """
    if len({len(ones) for ones in found}) > 1:
        return False
    spreads = []
    for together in zip(*found, strict=True):
        ends = [one.end_unix_ns for one in together if one.end_unix_ns is not None]
        if len(ends) < len(together):
            return False
        spreads.append(max(ends) - min(ends))
    return bool(np.median(spreads) <= COMMON_END_NS)


def _together(
    members: Sequence[int], mine: Mapping[int, Sequence[Instance]]
) -> tuple[CollectiveMatching, list[dict[int, Instance]]]:
    """What each operation is on the ranks that have it, in order."""
    if any(one.sequence is None for found in mine.values() for one in found):
        columns = (mine[rank] for rank in members)
        return CollectiveMatching.ORDER, [
            dict(zip(members, row, strict=True)) for row in zip(*columns, strict=True)
        ]
    rows: dict[int, dict[int, Instance]] = defaultdict(dict)
    for rank in members:
        for one in mine[rank]:
            if one.sequence is not None:
                rows[one.sequence][rank] = one
    return CollectiveMatching.SEQUENCE, [rows[number] for number in sorted(rows)]


def _durations(
    members: Sequence[int], rows: Sequence[Mapping[int, Instance]]
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """(n, g): one row per operation, one column per rank; NaN if a rank does not have it."""
    found = [[row[rank].duration_s if rank in row else np.nan for rank in members] for row in rows]
    return np.array(found, dtype=np.float64).reshape(-1, len(members))


def _pairs(found_by_rank: Mapping[int, Sequence[Instance]]) -> dict[_Way, list[_Pair]]:
    """The two ends of each message, in order, by the way that it went."""
    ends: dict[_Way, dict[bool, list[Instance]]] = defaultdict(lambda: {True: [], False: []})
    for rank, found in found_by_rank.items():
        for one in found:
            for message in one.source.messages if one.source else ():
                ends[_way(rank, message)][message.sent].append(one)
    # Both sides must show the same number, else the order says nothing.
    return {
        way: [
            {way[1]: sent, way[2]: received} for sent, received in zip(sides[True], sides[False], strict=True)
        ]
        for way, sides in ends.items()
        if len(sides[True]) == len(sides[False])
    }


def _way(rank: int, message: Message) -> _Way:
    return (message.group, rank, message.peer) if message.sent else (message.group, message.peer, rank)


def _split_messages(
    found_by_rank: Mapping[int, Sequence[Instance]],
    pairs: Mapping[_Way, Sequence[_Pair]],
    splits: dict[tuple[int, Key], _Split],
) -> None:
    """Transfer and waiting of sends and receives, into `splits`."""
    for rank, found in found_by_rank.items():
        position: dict[tuple[_Way, bool], int] = defaultdict(int)
        for one in found:
            parts = []
            for message in one.source.messages if one.source else ():
                way = _way(rank, message)
                at = position[way, message.sent]
                position[way, message.sent] += 1
                parts.append(min(end.duration_s for end in pairs[way][at].values()) if way in pairs else None)
            known = [part for part in parts if part is not None]
            if parts and len(known) == len(parts):
                transfer = min(max(known), one.duration_s)
                entry = splits[rank, one.key]
                entry.matched += 1
                entry.transfer_s += transfer
                entry.wait_s += one.duration_s - transfer
                entry.matching = CollectiveMatching.MESSAGES


def _rows(
    found: Sequence[Instance], rank: int, splits: Mapping[tuple[int, Key], _Split]
) -> list[CollectiveRow]:
    by_key: dict[Key, list[Instance]] = defaultdict(list)
    for one in found:
        by_key[one.key].append(one)
    rows = []
    for key, ones in by_key.items():
        part = splits.get((rank, key), _Split())
        sizes = [one.size_bytes for one in ones]
        rows.append(
            CollectiveRow(
                group=key.group or None,
                group_ranks=key.ranks
                or (tuple(sorted(ones[0].source.group_ranks)) if ones[0].source else ()),
                operation=key.operation,
                barrier=key.barrier,
                count=len(ones),
                total_s=sum(one.clipped_s for one in ones),
                exposed_s=sum(one.exposed_s for one in ones),
                size_bytes=None if None in sizes else sum(size for size in sizes if size is not None),
                transfer_s=part.transfer_s if part.matched else None,
                wait_s=part.wait_s if part.matched else None,
                matched_count=part.matched,
                matching=part.matching if part.matched else CollectiveMatching.NONE,
            )
        )
    return sorted(rows, key=lambda row: (-row.total_s, row.group or "", row.operation))
