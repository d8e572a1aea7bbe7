"""Which node or context group is slow, when its ranks are late together.

One whose pipelines lead to a slow one is late with it, but waits meanwhile. So of several that are late
the one whose ranks wait less than their peers is the slow one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfd.analysis.collectives import LateTogether, NcclRank
from perfd.thresholds import THRESHOLDS

_SIGMAS = 5.0
"""Standard errors that a gain must exceed, as that of a rank (`late_ranks`)."""
_LEAST = 2 / 3
"""Of what makes a rank a straggler: the delays of several ranks hardly agree by chance. Chosen."""
_APART = 0.5
"""Of what a node costs, what its ranks must wait less than those of the other nodes that are late. Chosen."""
_EXPLAINS = 0.25
"""Of what a node costs, what its ranks must wait less than those of their role. Chosen."""


def slow_together(
    late: Sequence[LateTogether], ranks: Sequence[NcclRank], *, steps_known: bool, pipelines: bool
) -> LateTogether | None:
    """The one that the others wait for; None where none is, or several may be.

    `late` are all that are, by however little. With `pipelines`, one that is late alone may be so
    with another one.
    """
    least = (
        THRESHOLDS.straggler_certain_wait_ratio
        if steps_known
        else THRESHOLDS.straggler_wait_without_steps_ratio
    )
    if not late:
        return None
    excess = {rank.rank: rank.excess_ratio for rank in ranks}
    ordered = sorted(late, key=lambda one: -_less_waiting(one, excess))
    first, others = ordered[0], ordered[1:]
    leads = _less_waiting(first, excess)
    if (pipelines or others) and leads < _EXPLAINS * first.gain_ratio:
        return None
    if others and leads - _less_waiting(others[0], excess) < _APART * first.gain_ratio:
        return None
    always = first.persistence_ratio >= THRESHOLDS.straggler_persistence_ratio
    enough = first.gain_ratio >= max(_LEAST * least, _SIGMAS * first.gain_error_ratio)
    return first if always and enough else None


def _less_waiting(one: LateTogether, excess: dict[int, float | None]) -> float:
    known = [ratio for rank in one.ranks if (ratio := excess.get(rank)) is not None]
    return float(np.median(known)) if known else 0.0
