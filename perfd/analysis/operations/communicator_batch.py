"""Communicators of one size side by side in one array, so that thousands are worked on at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfd.analysis.data.job_data import Bools, CollectiveStack, Floats, Ints
from perfd.analysis.layout import Names, group_names
from perfd.analysis.operations.communicator_waits import (
    BROADCAST,
    MATCHED_OPERATIONS,
    Blames,
    WaitSplit,
    blames_of,
    of_late_roots,
    split,
)
from perfd.analysis.operations.p2p_timing import with_waiting_receivers
from perfd.model import ParallelLayout

_BEHIND_S = 8.0
"""Operations of a rank that come at least this much later than those of its peers are late: an agent sends
once a second, and its restart takes a few. Chosen."""


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
    seen = [stack.ranks[_reporting(stack)].ravel() for stack in stacks]
    found = set(np.setdiff1d(counting, np.concatenate(seen)).tolist()) if any(map(len, seen)) else set()
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
    rest = np.flatnonzero(~found.all(axis=1))
    found[rest] = np.isfinite(durations_s[rest]).any(axis=1)
    return found
