"""Who waits for whom: of the time that each rank waits in collectives, how much for which last rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Floats, Ints
from perfd.analysis.data.robust_stats import highest
from perfd.analysis.operations.communicator_waits import CommunicatorBatch
from perfd.analysis.operations.p2p_timing import knows_receivers

_MOST_RANKS = 12
"""On each side of the matrix; of a larger job those that wait most, and that are waited for most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerWaits:
    """A matrix of ranks; empty where nothing is known."""

    waiting: Sequence[int] = ()
    """Rows: ranks that wait, in order of their numbers."""
    last: Sequence[int] = ()
    """Columns: ranks that came last and were waited for, in order."""
    wait_ratios: Sequence[Sequence[float]] = ()
    """(waiting, last): share of all time. A row adds up to the `wait_ratio` of its rank in `nccl.ranks` less
    what it waits for ranks that are not shown, and in operations whose last rank is unknown."""
    all_ratios: Sequence[float] = ()
    """(waiting,): that `wait_ratio`."""


def peer_waits(
    stacks: Sequence[CommunicatorBatch],
    scales: Sequence[Floats],
    ranks: Ints,
    wait_ratio: Floats,
    reported_ratio: Floats,
) -> PeerWaits:
    """The matrix, of communicators whose ranks are places in `ranks`.

    `scales` has for each stack, (c,), the share of all time for a second in its operations, 0 where unknown.
    `wait_ratio` is what these add up to by place, over all stacks, and `reported_ratio` what is reported of
    it; NaN is unknown.
    """
    known = [
        (stack, scale)
        for stack, scale in zip(stacks, scales, strict=True)
        if stack.matched or knows_receivers(stack.collectives)
    ]
    caused = np.zeros(len(ranks))
    for stack, scale in known:
        of_others = scale[:, None] * stack.blames.caused_s
        caused += np.bincount(stack.ranks.ravel(), of_others.ravel(), len(ranks))
    reports = np.isfinite(reported_ratio)
    rows, columns = _chosen(np.where(reports, reported_ratio, -1.0)), _chosen(caused)
    if not caused.any() or not reports.any():
        return PeerWaits()
    matrix = np.zeros((len(rows), len(columns)))
    for stack, scale in known:
        matrix += _waits(stack, scale, rows, columns, len(ranks))
    # What is reported of a rank is at most the time that it was in kernels.
    waits = wait_ratio[rows] > 0
    matrix[waits] *= (reported_ratio[rows] / np.where(waits, wait_ratio[rows], 1.0))[waits, None]
    return PeerWaits(
        waiting=ranks[rows].tolist(),
        last=ranks[columns].tolist(),
        wait_ratios=matrix.tolist(),
        all_ratios=reported_ratio[rows].tolist(),
    )


def _chosen(ratios: Floats) -> Ints:
    """The places with the highest ratios, in order, without negative ones; 0 only where all are shown."""
    most = highest(ratios, _MOST_RANKS)
    return np.sort(most[ratios[most] > 0] if len(ratios) > _MOST_RANKS else most[ratios[most] >= 0])


def _waits(stack: CommunicatorBatch, scale: Floats, rows: Ints, columns: Ints, world: int) -> Floats:
    """(rows, columns): the shares of one stack."""
    row_of, column_of = np.full(world, -1), np.full(world, -1)
    row_of[rows], column_of[columns] = np.arange(len(rows)), np.arange(len(columns))
    # Only a few members are rows: thousands of others need not be looked at.
    known = row_of[stack.ranks] >= 0
    group, member = divmod(np.flatnonzero(known & (scale > 0)[:, None]), known.shape[1])
    last = stack.parts.last_arriver[group]
    column = np.where(
        last >= 0, np.take_along_axis(column_of[stack.ranks[group]], np.maximum(last, 0), axis=1), -1
    )
    shares = stack.parts.wait_s[group, :, member] * scale[group][:, None]
    row = np.broadcast_to(row_of[stack.ranks[group, member]][:, None], column.shape)
    shown = (column >= 0) & np.isfinite(shares)
    places = row[shown] * len(columns) + column[shown]
    summed = np.bincount(places, shares[shown], len(rows) * len(columns))
    return np.asarray(summed, dtype=np.float64).reshape(len(rows), len(columns))
