"""What ranks report of NCCL, one communicator and one rank at a time; the analysis has both as columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import chain

import numpy as np

from perfd.analysis.data.job_data import CollectiveStack, Floats, Ints, NcclTimeTable
from perfd.model import TimingSource


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTable:
    """n operations of one kind on one communicator, by its g ranks. NaN where a rank has not reported.

    A send and its receive are one operation of two ranks, the sender first.
    """

    communicator: str
    operation: str
    ranks: Sequence[int]
    """Global ranks, one a column."""
    sequence: Ints
    """(n,)"""
    durations_s: Floats
    """(n, g)"""
    size_bytes: Floats
    """(n,)"""
    kernel_ratio: Floats
    """(g,): share of recent time that each rank spent in kernels of this kind, waiting included. The
    operations in the table are a part of those, as many of a frequent kind as of a rare one."""
    operations_per_s: float | None = None
    """How many of this kind a rank did a second lately, those that are not in the table included."""
    counted_s: float | None = None
    """Over how long that was counted."""
    best_s_per_byte: float | None = None
    """What a byte took in the communicator's own best stretch of earlier operations of its largest size."""
    best_size_bytes: float = 0.0
    """That size; those of half of it and more count."""
    timing: TimingSource = TimingSource.GPU
    source: str = ""
    """Who recorded them when it was not perfd's plugin, as in `CollectiveTimes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTime:
    """Time that a rank's GPU had an NCCL kernel on it, waiting included, over an interval of wall time."""

    rank: int
    busy_s: float
    """NaN if the rank's NCCL reports no time on the GPU."""
    span_s: float
    lost_operations: int
    operations: int | None = None
    """Operations that the rank began since its start."""
    still_s: float = 0.0
    """How long that number had not changed at the newest reading."""
    read_s: float | None = None
    """When the newest reading came, by the clock that the aggregator measures spans with."""
    lately_ratio: float | None = None
    """The share of time in kernels of the newest readings alone, which `busy_s` follows slowly."""


def times_of(times: Iterable[NcclTime] | NcclTimeTable) -> NcclTimeTable:
    """The columns of them."""
    if isinstance(times, NcclTimeTable):
        return times
    kinds = {"rank": np.int64, "lost_operations": np.int64}
    columns = {
        one.name: np.array([getattr(time, one.name) for time in times], dtype=kinds.get(one.name, np.float64))
        for one in fields(NcclTimeTable)
    }
    return NcclTimeTable(**columns)


def by_rank(table: NcclTimeTable) -> list[NcclTime]:
    """Its ranks, one by one; NaN is unknown."""
    names = [one.name for one in fields(NcclTimeTable)]
    rows = zip(*(getattr(table, name).tolist() for name in names), strict=True)
    return [NcclTime(**dict(zip(names, row, strict=True))) for row in rows]


def stacks_of(collectives: Iterable[CollectiveTable | CollectiveStack]) -> list[CollectiveStack]:
    """All communicators; tables in as few stacks as they have operations and sizes."""
    stacks: list[CollectiveStack] = []
    alike: dict[tuple[str, int], list[CollectiveTable]] = {}
    for one in collectives:
        if isinstance(one, CollectiveStack):
            stacks.append(one)
        else:
            alike.setdefault((one.operation, len(one.ranks)), []).append(one)
    return stacks + [_side_by_side(tables) for tables in alike.values()]


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
