"""Which rank is late for collectives, when a whole pipeline or tensor group is late with it.

The collective of a stage shows that a rank came late, not why: in a pipeline all stages of a slow rank's
pipeline are late for their own collectives, and in a tensor group its partners are. Those wait for the slow
rank, too, only elsewhere: in receives, in collectives of the tensor group. So of all that are late, the one
that waits least by its peers is the slow one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from perfd.analysis.collectives import NcclRank
from perfd.thresholds import THRESHOLDS

_SIGMAS = 5.0
"""Standard errors that a gain must exceed. If two ranks take turns being late, as with unequal sequence
lengths, one comes last in nearly all blocks of a window by chance in 1 of 100 windows. With 3 sigmas, one of
them would be named in 1 of 500, with 5 in 1 of 11,000 (400,000 simulated windows of 30 steps, normal and
uniform times)."""
_LEAST_SLOWDOWN = 0.03
"""By which the slowest rank leads the next one: less is the spread of healthy GPUs. Chosen."""
_EXPLAINS = 0.6
"""Of what ranks are late together, what the slow one's own excess must be."""
_MOSTLY_SEEN = 0.8
"""Least share of a rank's operations that must be known: the rank that lost more of them seems to wait less.
Chosen."""
_APART = 2.0
"""How many times as far above its peers the slowest must be as the next one that is late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """Ranks that are late for the collectives of their peers."""

    rank: NcclRank | None
    """The slow one; None if it is unknown which of them it is."""
    together: Sequence[int]
    """All that are late, with it."""
    gain_ratio: float
    """The share of a step that the job would gain without their excess over their peers."""
    last_ratio: float
    step_s: float | None = None
    """How long a step takes of which `gain_ratio` is a share."""


def late(
    ranks: Sequence[NcclRank],
    named_elsewhere: Collection[int] = (),
    *,
    steps_known: bool = True,
    inner_groups: bool = False,
) -> Late | None:
    """The rank that its peers wait for in NCCL's kernels, if enough is caused by one, else None.

    Persistence and magnitude are both needed: by chance some rank is always the last, and one that is always
    the last may be so by next to nothing. `named_elsewhere` are ranks that other evidence shows to be slow.
    Before `steps_known`, operations of one size count as a step each. With `inner_groups` ranks may be late
    because of others that are late with them.
    """
    least_ratio = (
        THRESHOLDS.straggler_certain_wait_ratio
        if steps_known
        else THRESHOLDS.straggler_wait_without_steps_ratio
    )
    costly = [rank for rank in ranks if _persistent(rank) and _costly(rank, least_ratio)]
    if not costly:
        return _alike(ranks, least_ratio)
    worst = max(costly, key=lambda rank: rank.gain_ratio or 0)
    # Who is late with it may by chance be a little under what is worth a name; and the slow one may cost its
    # own peers little, who wait for its pipeline elsewhere.
    least = (worst.gain_ratio or 0) / 2
    together = [rank for rank in ranks if _persistent(rank) or (rank.gain_ratio or 0) >= least]
    return Late(
        rank=_slowest(together, named_elsewhere, inner_groups=inner_groups),
        together=tuple(rank.rank for rank in together),
        gain_ratio=worst.gain_ratio or 0.0,
        last_ratio=worst.last_ratio or 0.0,
        step_s=worst.step_s,
    )


def _alike(ranks: Sequence[NcclRank], least_ratio: float) -> Late | None:
    """Ranks that are late by as much, so that each is the last in turn: a few of many, as on one bad node."""
    alike = [rank for rank in ranks if _always_late(rank) and _costly(rank, least_ratio)]
    last_ratio = sum(rank.last_ratio or 0.0 for rank in alike)
    if len(alike) < 2 or last_ratio < THRESHOLDS.straggler_share_ratio:
        return None
    worst = max(alike, key=lambda rank: rank.gain_ratio or 0.0)
    return Late(
        rank=None,
        together=tuple(rank.rank for rank in alike),
        gain_ratio=worst.gain_ratio or 0.0,
        last_ratio=last_ratio,
        step_s=worst.step_s,
    )


def _always_late(rank: NcclRank) -> bool:
    return (rank.persistence_ratio or 0) >= THRESHOLDS.straggler_block_persistence_ratio


def _persistent(rank: NcclRank) -> bool:
    return _always_late(rank) and (rank.last_ratio or 0) >= THRESHOLDS.straggler_share_ratio


def _costly(rank: NcclRank, least_ratio: float) -> bool:
    # Healthy jobs have less; with few steps, chance can cause more.
    least = max(least_ratio, _SIGMAS * (rank.gain_error_ratio or 0.0))
    return (rank.gain_ratio or 0) >= least


def _slowest(
    together: Sequence[NcclRank], named_elsewhere: Collection[int], *, inner_groups: bool
) -> NcclRank | None:
    confirmed = [rank for rank in together if rank.rank in named_elsewhere]
    if confirmed:
        return confirmed[0]
    alone = len(together) == 1
    if alone and not inner_groups:
        return together[0]
    if any(rank.seen_ratio is not None and rank.seen_ratio < _MOSTLY_SEEN for rank in together):
        return None
    if alone:
        return together[0]
    # Who waits so much less than its peers that it explains how late they are together.
    least = max(rank.gain_ratio or 0.0 for rank in together) * _EXPLAINS
    explaining = [rank for rank in together if (rank.excess_ratio or 0.0) >= least]
    if len(explaining) == 1:
        return explaining[0]
    by_slowdown = sorted(together, key=lambda rank: -(rank.slowdown_ratio or 0))
    first, second = (max(0.0, (rank.slowdown_ratio or 0) - 1) for rank in by_slowdown[:2])
    apart = first - second >= _LEAST_SLOWDOWN and first >= _APART * second
    return by_slowdown[0] if apart else None
