"""Which rank is late for collectives, when a whole pipeline or tensor group is late with it.

The collective of a stage shows that a rank came late, not why: in a pipeline all stages of a slow rank's
pipeline are late for their own collectives, and in a tensor group its partners are. Those wait for the slow
rank, too, only elsewhere: in receives, in collectives of the tensor group. So of all that are late, the one
that waits least by its peers is the slow one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from perfd.analysis.nccl_ranks import NcclRank

_LEAST_CAUSED = 0.05
"""Of the time: what the peers wait for one rank before it is worth a name."""
_LEAST_LAST = 0.6
_LEAST_SLOWDOWN = 1.03
_APART = 2.0
"""How many times as far above its peers the slowest must be as the next one that is late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """Ranks that are late for the collectives of their peers."""

    rank: NcclRank | None
    """The slow one; None when nothing tells which of them it is."""
    together: Sequence[int]
    """All that are late, with it."""
    caused_ratio: float
    """The most that the peers of one of them wait, of all time."""
    last_ratio: float


def late(ranks: Sequence[NcclRank], named_elsewhere: Collection[int] = ()) -> Late | None:
    """The rank that its peers wait for in NCCL's kernels, if enough is caused by one, else None.

    Persistence and magnitude are both needed: by chance some rank is always the last, and one that is always
    the last may be so by next to nothing. `named_elsewhere` are ranks that other evidence shows to be slow.
    """
    persistent = [rank for rank in ranks if (rank.last_ratio or 0) >= _LEAST_LAST]
    costly = [rank for rank in persistent if (rank.caused_ratio or 0) >= _LEAST_CAUSED]
    if not costly:
        return None
    worst = max(costly, key=lambda rank: rank.caused_ratio or 0)
    return Late(
        rank=_slowest(persistent, costly, named_elsewhere),
        together=tuple(rank.rank for rank in costly),
        caused_ratio=worst.caused_ratio or 0.0,
        last_ratio=worst.last_ratio or 0.0,
    )


def _slowest(
    persistent: Sequence[NcclRank], costly: Sequence[NcclRank], named_elsewhere: Collection[int]
) -> NcclRank | None:
    confirmed = [rank for rank in persistent if rank.rank in named_elsewhere]
    if confirmed or len(costly) == 1:
        return confirmed[0] if confirmed else costly[0]
    by_slowdown = sorted(persistent, key=lambda rank: -(rank.slowdown_ratio or 0))
    first, second = (max(0.0, (rank.slowdown_ratio or 0) - 1) for rank in by_slowdown[:2])
    apart = 1 + first >= _LEAST_SLOWDOWN and first >= _APART * second
    return by_slowdown[0] if apart else None
