"""Communicators of one size side by side in one array, so that thousands are worked on at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from perfd.analysis.data.job_data import CollectiveStack, CollectiveTable, Floats, Ints
from perfd.analysis.layout import Names, group_names
from perfd.analysis.operations.p2p_timing import with_waiting_receivers
from perfd.analysis.operations.transfer_wait import (
    BROADCAST,
    MATCHED_OPERATIONS,
    Blames,
    WaitSplit,
    blames_of,
    of_late_roots,
    split,
)
from perfd.model import ParallelLayout


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
        """(c, g): as in `CollectiveTable`."""
        return self.collectives.kernel_ratio


def stacked(
    collectives: Iterable[CollectiveTable | CollectiveStack], parallel: ParallelLayout
) -> list[CommunicatorBatch]:
    """All communicators and their waiting; tables in as few stacks as they have operations and sizes."""
    stacks: list[CollectiveStack] = []
    alike: dict[tuple[str, int], list[CollectiveTable]] = {}
    for one in collectives:
        if isinstance(one, CollectiveStack):
            stacks.append(one)
        else:
            alike.setdefault((one.operation, len(one.ranks)), []).append(one)
    stacks += [_side_by_side(tables) for tables in alike.values()]
    return [_split(stack, parallel) for stack in stacks]


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


def _side_by_side(tables: Sequence[CollectiveTable]) -> CollectiveStack:
    width = len(tables[0].ranks)
    members = chain.from_iterable(table.ranks for table in tables)
    lengths = np.array([len(table.sequence) for table in tables])
    shape = (len(tables), int(lengths.max()))
    sequence, sizes = np.full(shape, -1), np.full(shape, np.nan)
    durations = np.full((*shape, width), np.nan)
    for row, table in enumerate(tables):
        sequence[row, : lengths[row]] = table.sequence
        sizes[row, : lengths[row]] = table.size_bytes
        durations[row, : lengths[row]] = table.durations_s
    return CollectiveStack(
        operation=tables[0].operation,
        communicators=[table.communicator for table in tables],
        ranks=np.fromiter(members, dtype=np.int64, count=len(tables) * width).reshape(-1, width),
        lengths=lengths,
        sequence=sequence,
        durations_s=durations,
        size_bytes=sizes,
        kernel_ratio=np.array([table.kernel_ratio for table in tables], dtype=np.float64),
        operations_per_s=np.array([table.operations_per_s for table in tables], dtype=np.float64),
        best_s_per_byte=np.array([table.best_s_per_byte for table in tables], dtype=np.float64),
        best_size_bytes=np.array([table.best_size_bytes for table in tables], dtype=np.float64),
        counted_s=np.array([table.counted_s for table in tables], dtype=np.float64),
        timings=[table.timing for table in tables],
        sources=[table.source for table in tables],
    )
