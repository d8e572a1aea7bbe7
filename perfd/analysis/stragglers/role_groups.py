"""Ranks of one role side by side: only they have the same work, and are compared with each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Floats, Ints
from perfd.analysis.data.robust_stats import median
from perfd.analysis.layout import roles_of
from perfd.analysis.steps import stage_of_ranks
from perfd.model import ParallelLayout

_SMALL_GROUP = 8
"""In a larger group one member does not move the median by much."""


@dataclass(frozen=True, slots=True)
class RoleBlock:
    """The roles that have equally many ranks, so that one array holds the values of all of them."""

    roles: Ints
    """(r,): the number of each among the roles."""
    places: Ints
    """(r, g): positions of the ranks of each."""


def peer_groups(ranks: Ints, parallel: ParallelLayout) -> list[Ints]:
    """Positions of the ranks of each role; none when the layout is unknown or a rank is missing."""
    stages = stage_of_ranks(ranks, parallel)
    if stages is None or len(ranks) != parallel.world_size:
        return []
    roles = roles_of(ranks, stages, parallel)
    order = np.argsort(roles, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(roles[order])) + 1)
    return [group for group in groups if len(group) > 1]


def role_blocks(ranks: Ints, parallel: ParallelLayout) -> list[RoleBlock]:
    """The same groups, those of one size together."""
    groups = peer_groups(ranks, parallel)
    sizes = np.array([len(group) for group in groups], dtype=np.int64)
    return [
        RoleBlock(roles, np.stack([groups[role] for role in roles]))
        for roles in (np.flatnonzero(sizes == size) for size in np.unique(sizes))
    ]


def others(values: Floats) -> Floats:
    """For each of the peers on the last axis, the median of the others; NaN where none of them is known."""
    peers = values.shape[-1]
    if peers > _SMALL_GROUP:
        return np.broadcast_to(median(values)[..., None], values.shape)
    # One sort serves all: without a peer, what lies above it moves down by one place. NaN comes last.
    order = np.argsort(values, axis=-1)
    ordered = np.take_along_axis(values, order, -1)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(peers), -1)
    known = (~np.isnan(values)).sum(axis=-1, keepdims=True)
    count = known - (place < known)
    low, high = np.maximum(count - 1, 0) // 2, count // 2
    low, high = (np.minimum(index + (index >= place), peers - 1) for index in (low, high))
    below, above = (np.take_along_axis(ordered, index, -1) for index in (low, high))
    return np.where(count > 0, below + (above - below) / 2, np.nan)
