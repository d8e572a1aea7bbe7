"""How much slower than its peers each rank is, by the best source that covers all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd.analysis.collectives import NcclSummary
from perfd.analysis.data.job_data import Floats
from perfd.analysis.data.robust_stats import median
from perfd.analysis.steps import Timers
from perfd.analysis.stragglers.role_groups import peer_groups
from perfd.model import ParallelLayout

_MOST_RANKS = 1024
"""Ranks that a summary lists, the slowest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSlowdown:
    """One rank by its peers: 1.0 is as fast as they are, 1.2 takes 20% longer."""

    rank: int
    ratio: float
    source: str


def slowdowns(timers: Timers, kernels: NcclSummary, parallel: ParallelLayout) -> tuple[RankSlowdown, ...]:
    """By rank: compute by timers of each rank, else the time that a rank does not wait in NCCL's kernels.

    Of more than 1,024 ranks, the slowest so many.
    """
    by_timers = _by_timers(timers, parallel)
    found = by_timers or tuple(
        RankSlowdown(rank=rank.rank, ratio=rank.slowdown_ratio, source=kernels.source or "")
        for rank in kernels.ranks
        if rank.slowdown_ratio is not None
    )
    if len(found) <= _MOST_RANKS:
        return found
    slowest = sorted(found, key=lambda slowdown: -slowdown.ratio)[:_MOST_RANKS]
    return tuple(sorted(slowest, key=lambda slowdown: slowdown.rank))


def _by_timers(timers: Timers, parallel: ParallelLayout) -> tuple[RankSlowdown, ...]:
    phases = timers.computing_by_rank_s()
    if phases is None or timers.hold_waiting:
        # With waiting in them, all ranks take as long as the slowest.
        return ()
    typical = median(phases[0] + phases[1], axis=0)
    return tuple(
        RankSlowdown(rank=rank, ratio=ratio, source="timers: by rank")
        for peers in peer_groups(np.arange(len(typical)), parallel)
        for rank, ratio in zip(peers.tolist(), _of_peers(typical[peers]).tolist(), strict=True)
        if np.isfinite(ratio)
    )


def _of_peers(compute_s: Floats) -> Floats:
    """By the median of all of them; nothing when one is missing."""
    if not np.isfinite(compute_s).all() or not (compute_s > 0).all():
        return np.full(len(compute_s), np.nan)
    return np.asarray(compute_s / np.median(compute_s))
