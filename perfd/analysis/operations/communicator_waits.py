"""Which rank waits for which: transfer and waiting inside NCCL's kernels, separated without clocks.

Communicators of one size are side by side in one array, so that thousands are worked on at once.

A collective ends on all its ranks at about the same instant, and a rank's kernel runs from its own
arrival to that end. So the shortest duration is that of the rank that came last and did not wait,
which makes it the transfer, and what the others took longer is their waiting for that rank. Only
durations and the matching of operations by (communicator, operation, sequence number) are needed, no
agreement of clocks. (The rule is Mycroft's and Greyhound's; it holds for all-reduce, reduce-scatter,
all-gather and all-to-all, not for broadcast and reduce, whose root may finish early; of broadcasts
those count in which all others wait for one rank.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from perfd.analysis.data.job_data import Bools, CollectiveStack, Floats, Ints
    from perfd.analysis.layout import Names
    from perfd.model import ParallelLayout

MATCHED_OPERATIONS = frozenset({"AllReduce", "ReduceScatter", "AllGather", "AlltoAll"})
"""Those whose shortest duration is the transfer."""
BROADCAST = "Broadcast"
"""Its root may end early, so its shortest duration is a little less than the transfer. But waiting in it for
a late root shows which rank of a tensor group is slow: the first one reads data for the others."""

_ALIKE_RATIO = 0.5
"""Of the longest wait in a broadcast, the least of the others where all wait for the root."""
_FEW_RANKS = 16
"""Up to so many, a loop over ranks is faster than numpy over its last axis."""
_PAIR = 2
"""Up to so many, it is so even for a single difference."""
_BEHIND_S = 8.0
"""Operations of a rank that come at least this much later than those of its peers are late: an agent sends
once a second, and its restart takes a few. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSplit:
    """Operations by g ranks, in any arrangement of operations; NaN, or -1, where a rank is missing."""

    transfer_s: Floats
    """(..., n)"""
    wait_s: Floats
    """(..., n, g): how long each rank waited for the last one."""
    last_arriver: Ints
    """(..., n): the column of the rank that the others waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitBlame:
    """What each of g ranks did to the others, over the operations that all ranks reported."""

    operations: int
    """How many operations could be matched; nothing can be said of none."""
    transfer_s: float
    """Sum over operations."""
    waited_s: Floats
    """(g,): what each rank waited."""
    caused_s: Floats
    """(g,): mean waiting of the others while this rank was the last, summed over operations."""
    last_ratio: Floats
    """(g,): share of all waiting that fell on operations where this rank was the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blames:
    """The same for c communicators of g ranks each: what is a number there is an array of c here."""

    operations: Ints
    transfer_s: Floats
    waited_s: Floats
    """(c, g)"""
    caused_s: Floats
    """(c, g)"""


def split(durations_s: Floats) -> WaitSplit:
    """Transfer, waiting and last arriver of each operation.

    `durations_s` is (n, g), one row per operation and one column per rank of the communicator; NaN where a
    rank did not report. More dimensions in front are more operations. A row with a missing rank says nothing:
    the missing one may have been the last.
    """
    if not durations_s.shape[-1]:
        nobody = np.full(durations_s.shape[:-1], np.nan)
        return WaitSplit(transfer_s=nobody, wait_s=durations_s, last_arriver=np.full(nobody.shape, -1))
    ranks = durations_s.shape[-1]
    shortest, last = _shortest(durations_s)
    if ranks == 1:
        shortest = np.full_like(shortest, np.nan)
    last[~np.isfinite(shortest)] = -1
    if ranks > _PAIR:
        return WaitSplit(transfer_s=shortest, wait_s=durations_s - shortest[..., None], last_arriver=last)
    wait_s = np.empty_like(durations_s)
    for index in range(ranks):
        np.subtract(durations_s[..., index], shortest, out=wait_s[..., index])
    return WaitSplit(transfer_s=shortest, wait_s=wait_s, last_arriver=last)


def _shortest(durations_s: Floats) -> tuple[Floats, Ints]:
    """The least of each row and its column. A row with an absent value is absent: NaN is its least."""
    ranks = durations_s.shape[-1]
    if ranks > _FEW_RANKS:
        return durations_s.min(axis=-1), durations_s.argmin(axis=-1)
    # Over a short last axis numpy spends its time on the loop: column by column is several times as fast.
    least = durations_s[..., 0].copy()
    column = np.zeros(least.shape, dtype=np.int8)
    for index in range(1, ranks):
        own = durations_s[..., index]
        # Arithmetic on small integers is several times as fast as writing through a mask.
        np.maximum(column, (own < least) * np.int8(index), out=column)
        np.minimum(least, own, out=least)
    return least, column.astype(np.int64)


def of_late_roots(durations_s: Floats) -> Floats:
    """The durations (..., g) of broadcasts, without those in which the last one need not be the root.

    All others wait for a late root alike. For another late rank only those behind it wait, and the root may
    have ended before it came: then the shortest duration is not that of the last.
    """
    if durations_s.shape[-1] < 2:
        return durations_s
    ordered = np.sort(durations_s, axis=-1)
    waits = ordered - ordered[..., :1]
    alike = waits[..., 1] >= _ALIKE_RATIO * waits[..., -1]
    return np.where(alike[..., None], durations_s, np.nan)


def blames(durations_s: Floats) -> Blames:
    """What each rank of each communicator did to the others; `durations_s` is (c, n, g)."""
    return blames_of(split(durations_s))


def blames_of(parts: WaitSplit) -> Blames:
    """The same, of operations that are split already."""
    communicators, held, ranks = parts.wait_s.shape
    matched = parts.last_arriver >= 0
    wait, transfer, last = parts.wait_s, parts.transfer_s, parts.last_arriver
    operations = np.full(communicators, held)
    if not matched.all():
        operations = np.ascontiguousarray(matched.T).sum(axis=0)
        wait, transfer = np.where(matched[..., None], wait, 0.0), np.where(matched, transfer, 0.0)
        last = np.maximum(last, 0)
    # Over an axis in the middle numpy's own sum is several times as slow.
    waited = np.einsum("cng->cg", wait)
    return Blames(
        operations=operations,
        transfer_s=transfer.sum(axis=1),
        waited_s=waited,
        # Of two, what one waits is what the other one causes.
        caused_s=waited[:, ::-1] if ranks == _PAIR else _caused(wait, last),
    )


def _caused(wait_s: Floats, last: Ints) -> Floats:
    """(c, g): what the others waited while each rank was the last, of all operations."""
    communicators, _, ranks = wait_s.shape
    # The last rank's own waiting is zero, so the sum over the row is that of the others.
    of_others = wait_s.reshape(-1, ranks) @ np.full(ranks, 1 / max(1, ranks - 1))
    place = np.arange(0, communicators * ranks, ranks)[:, None] + last
    caused = np.bincount(place.ravel(), weights=of_others.ravel(), minlength=communicators * ranks)
    return caused.astype(np.float64).reshape(communicators, ranks)


def blame(durations_s: Floats) -> WaitBlame:
    """The same for one communicator; `durations_s` as in `split`."""
    result = blames(durations_s[None])
    caused = result.caused_s[0]
    total = caused.sum()
    return WaitBlame(
        operations=int(result.operations[0]),
        transfer_s=float(result.transfer_s[0]),
        waited_s=result.waited_s[0],
        caused_s=caused,
        last_ratio=caused / total if total > 0 else np.full(len(caused), np.nan),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicatorBatch:
    """c communicators of g ranks with one kind of operation, what they are for, and their waiting."""

    collectives: CollectiveStack
    names: Names
    distinct_names: frozenset[str | None]
    parts: WaitSplit
    blames: Blames
    unseen_ratio: Floats
    """(c, g): the share of time in kernels that is known by the other rank only."""
    matched: bool
    """Whether who came last is who the others wait for."""

    @property
    def operation(self) -> str:
        """What they do."""
        return self.collectives.operation

    def named(self, name: str | None) -> Bools:
        """(c,): which of them have this name."""
        if self.distinct_names == {name}:
            # As nearly always; names are objects, which take long to compare.
            return np.ones(len(self.names), dtype=np.bool_)
        return np.asarray(self.names == name, dtype=np.bool_)

    @property
    def ranks(self) -> Ints:
        """(c, g), global ones."""
        return self.collectives.ranks

    @property
    def size_bytes(self) -> Floats:
        """(c, n): of each operation."""
        return self.collectives.size_bytes

    @property
    def kernel_ratio(self) -> Floats:
        """(c, g): as in `CollectiveStack`."""
        return self.collectives.kernel_ratio

    def at_places(self, ranks: Ints) -> CommunicatorBatch:
        """The same communicators with the place of each rank among all `ranks` instead of its number."""
        if bool((ranks == np.arange(len(ranks))).all()):
            # As nearly always.
            return self
        places = np.searchsorted(ranks, self.ranks)
        return replace(self, collectives=replace(self.collectives, ranks=places))

    def seen_ratio(self, rows: Ints) -> Floats:
        """Of operations between the first and the newest that all ranks of a communicator reported.

        Before these, an agent had not come; after them, reports may be to come.
        """
        matched = self.parts.last_arriver[rows] >= 0
        due = matched.shape[1] - np.argmax(matched[:, ::-1], axis=1) - np.argmax(matched, axis=1)
        return np.asarray(matched.sum(axis=1) / due)


def stacked(collectives: Iterable[CollectiveStack], parallel: ParallelLayout) -> list[CommunicatorBatch]:
    """All communicators and their waiting."""
    return [_split(stack, parallel) for stack in collectives]


def _split(collectives: CollectiveStack, parallel: ParallelLayout) -> CommunicatorBatch:
    # Traces, which only use the rule above, start faster without them.
    from perfd.analysis.layout import group_names  # noqa: PLC0415
    from perfd.analysis.operations.p2p_timing import with_waiting_receivers  # noqa: PLC0415

    reported_ratio = collectives.kernel_ratio
    matched = collectives.operation in MATCHED_OPERATIONS
    if not matched:
        collectives = with_waiting_receivers(collectives)
    if collectives.operation == BROADCAST and not _has_inner_groups(parallel):
        matched = True
        collectives = replace(collectives, durations_s=of_late_roots(collectives.durations_s))
    parts = split(collectives.durations_s)
    names = group_names(collectives.ranks, parallel, collectives.operation)
    return CommunicatorBatch(
        collectives=collectives,
        names=names,
        distinct_names=frozenset(names.tolist()),
        parts=parts,
        blames=blames_of(parts),
        unseen_ratio=collectives.kernel_ratio - reported_ratio,
        matched=matched,
    )


def _has_inner_groups(parallel: ParallelLayout) -> bool:
    """Whether broadcasts may hand data to a tensor group or stages: the rank that reads it has more to do."""
    return any((size or 1) > 1 for size in (parallel.tp, parallel.pp, parallel.cp))


def ranks_behind(stacks: Sequence[CommunicatorBatch], counting: Ints) -> tuple[int, ...]:
    """Ranks whose newest operations are far older than those that others of their communicators reported.

    The operations that all of them reported are then of an earlier time, and who was late in those may not be
    late now. Ranks that are `counting` many operations and report none are behind as well.
    """
    silent, any_report = counting, False
    for stack in stacks:
        if len(silent):
            reporting = stack.ranks[_reporting(stack)]
            any_report |= reporting.size > 0
            silent = silent[~np.isin(silent, reporting)]
    found = set(silent.tolist()) if any_report else set()
    for stack in stacks:
        sequence, last = stack.collectives.sequence, stack.collectives.lengths - 1
        if not stack.matched or not sequence.size:
            continue
        # Usually all ranks have reported the newest one.
        row = np.flatnonzero((stack.parts.last_arriver[np.arange(len(last)), last] < 0) & (last >= 0))
        reported = stack.parts.last_arriver[row] >= 0
        some = reported.any(axis=1)
        row, reported = row[some], reported[some]
        newest = sequence[row, last[row]]
        common = sequence[row, reported.shape[1] - 1 - reported[:, ::-1].argmax(axis=1)]
        most = _BEHIND_S * stack.collectives.operations_per_s[row]
        for at in np.flatnonzero(newest - common > most).tolist():
            own = np.isfinite(stack.collectives.durations_s[row[at]])
            of_rank = np.where(own, sequence[row[at], :, None], -1).max(axis=0)
            late = newest[at] - of_rank > most[at]
            if not late.all():
                # Else none of them is known: of broadcasts, those without a late root.
                found.update(stack.ranks[row[at], late].tolist())
    return tuple(sorted(found))


def _reporting(stack: CommunicatorBatch) -> Bools:
    """Which of its ranks report operations: (c,) of groups that must all, (c, g) of pairs."""
    if stack.matched:
        return stack.blames.operations > 0
    durations_s, lengths = stack.collectives.durations_s, stack.collectives.lengths
    if not durations_s.size:
        return np.zeros(stack.ranks.shape, dtype=np.bool_)
    found: Bools = np.isfinite(durations_s[np.arange(len(lengths)), np.maximum(lengths - 1, 0)])
    # Usually each has reported the newest one: to look at all of them takes far longer.
    rest = np.flatnonzero(~np.ascontiguousarray(found.T).all(axis=0))
    found[rest] = np.isfinite(durations_s[rest]).any(axis=1)
    return found
