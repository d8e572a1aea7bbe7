"""Which node is slow, when its ranks are late together.

One whose pipelines lead to a slow one is late with it, but waits meanwhile. So of several that are late
the one whose ranks wait less than their peers is the slow one.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfd.analysis.collectives import LateTogether
from perfd.thresholds import THRESHOLDS

_SIGMAS = 5.0
"""Standard errors that a gain must exceed, as for a rank (`straggler_findings`)."""
_LEAST = 2 / 3
"""Of what makes a rank a straggler: the delays of several ranks hardly agree by chance. Chosen."""
_APART = 0.5
"""Of what a node costs, what its ranks must wait less than those of the other nodes that are late. Chosen."""
_EXPLAINS = 0.25
"""Of what a node costs, what its ranks must wait less than those of their role. Chosen."""


def slow_together(
    late: Sequence[LateTogether], *, steps_known: bool, inner_groups: bool
) -> LateTogether | None:
    """The one that the others wait for; None where none is, or several may be.

    `late` are all that are, by however little. With `inner_groups` (pipelines, tensor or context groups) one
    that is late alone may be so with another one, or with one of its ranks.
    """
    least = (
        THRESHOLDS.straggler_certain_wait_ratio
        if steps_known
        else THRESHOLDS.straggler_wait_without_steps_ratio
    )
    if not late:
        return None
    ordered = sorted(late, key=lambda one: one.waits_ratio)
    first, others = ordered[0], ordered[1:]
    if others and others[0].waits_ratio - first.waits_ratio < _APART * first.gain_ratio:
        return None
    if inner_groups and first.whole and -first.waits_ratio < _EXPLAINS * first.gain_ratio:
        return None
    always = first.persistence_ratio >= THRESHOLDS.straggler_persistence_ratio
    enough = first.gain_ratio >= max(_LEAST * least, _SIGMAS * first.gain_error_ratio)
    return first if always and enough else None
