"""Communicators of one size side by side in one array, so that thousands are worked on at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from perfd.analysis.groups import Names, group_names
from perfd.analysis.tables import CollectiveTable, Floats, Ints
from perfd.analysis.waiting import Blames, WaitSplit, blames_of, split
from perfd.model import ParallelLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """c communicators of g ranks with the same kind of operation, the newest n of each; NaN is absent."""

    operation: str
    tables: Sequence[CollectiveTable]
    names: Names
    ranks: Ints
    """(c, g)"""
    size_bytes: Floats
    """(c, n)"""
    kernel_ratio: Floats
    """(c, g)"""
    parts: WaitSplit
    blames: Blames
    lengths: Ints
    """(c,): how many operations of each are known, of n."""


def stacked(tables: Iterable[CollectiveTable], parallel: ParallelLayout) -> list[Stack]:
    """All communicators, in as few stacks as they have operations and sizes."""
    alike: dict[tuple[str, int], list[CollectiveTable]] = {}
    for table in tables:
        alike.setdefault((table.operation, len(table.ranks)), []).append(table)
    return [_stack(operation, members, parallel) for (operation, _), members in alike.items()]


def _stack(operation: str, tables: Sequence[CollectiveTable], parallel: ParallelLayout) -> Stack:
    width = len(tables[0].ranks)
    members = chain.from_iterable(table.ranks for table in tables)
    ranks = np.fromiter(members, dtype=np.int64, count=len(tables) * width).reshape(len(tables), width)
    lengths = np.array([len(table.sequence) for table in tables])
    longest = int(lengths.max())
    if (lengths == longest).all():
        # Several times as fast as `stack`, which makes a view of each array first.
        durations = np.concatenate([table.durations_s for table in tables])
        durations = durations.reshape(len(tables), longest, width)
        sizes = np.concatenate([table.size_bytes for table in tables]).reshape(len(tables), longest)
    else:
        durations = np.full((len(tables), longest, width), np.nan)
        sizes = np.full((len(tables), longest), np.nan)
        for index, table in enumerate(tables):
            durations[index, : lengths[index]] = table.durations_s
            sizes[index, : lengths[index]] = table.size_bytes
    parts = split(durations, in_place=True)
    return Stack(
        operation=operation,
        tables=tables,
        names=group_names(ranks, parallel, operation),
        ranks=ranks,
        size_bytes=sizes,
        kernel_ratio=np.concatenate([table.kernel_ratio for table in tables]).reshape(ranks.shape),
        parts=parts,
        blames=blames_of(parts),
        lengths=lengths,
    )
