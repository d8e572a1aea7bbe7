"""A rank that became slow compared with its own past: for jobs in which no other rank has the same work.

When steps become longer because of one rank, all others wait so much longer, in whatever operations they
have with it or with each other, and it alone does not. What the job would gain is what was measured: the
steps before were as fast as steps are without the fault.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Floats
from perfd.analysis.data.robust_stats import MAD_TO_SIGMA, median

_FEWEST_SINCE, _MOST_SINCE = 4, 20
"""Steps since the change; later the steps before are another time."""
_FEWEST_BEFORE, _MOST_BEFORE = 6, 8
_LEAST_RATIO = 0.08
"""By which steps must be longer: by less they scatter."""
_SIGMAS = 3.0
"""And by this many of their robust standard deviations before."""
_NOT_IT, _IT = 0.5, 0.25
"""Of what steps are longer, what others wait longer at least, and the slow one at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSince:
    """One rank that the others wait for since some steps."""

    place: int
    steps: int
    """Since so many."""
    before_s: float
    """A step before, and since."""
    since_s: float

    @property
    def gain_ratio(self) -> float:
        """The share of a step that the job would gain if it were as fast as before."""
        return 1 - self.before_s / self.since_s


def slow_since(step_time_s: Floats, waits_s: Floats) -> SlowSince | None:
    """The rank, if all steps since are longer than all but a few before and no other rank stopped waiting.

    `step_time_s` (steps,) and `waits_s` (steps, ranks) have the newest last, NaN where unknown; of different
    lengths only what both have is looked at.
    """
    steps = min(len(step_time_s), len(waits_s))
    if steps < _FEWEST_SINCE + _FEWEST_BEFORE or waits_s.shape[1] < 2:
        return None
    lasted, waited = step_time_s[len(step_time_s) - steps :], waits_s[len(waits_s) - steps :]
    # The earliest moment from which on it holds: a few steps later it does, too.
    for since in range(min(_MOST_SINCE, steps - _FEWEST_BEFORE), _FEWEST_SINCE - 1, -1):
        before = slice(max(0, steps - since - _MOST_BEFORE), steps - since)
        found = _between(lasted[before], lasted[steps - since :], waited[before], waited[steps - since :])
        if found is not None:
            return found
    return None


def _between(before_s: Floats, since_s: Floats, waited_s: Floats, wait_s: Floats) -> SlowSince | None:
    if not (np.isfinite(before_s).all() and np.isfinite(since_s).all()):
        return None
    usual_s, now_s = float(np.median(before_s)), float(np.median(since_s))
    longer_s = now_s - usual_s
    # All steps since are longer than nearly all before; a single one of these may have been a pause.
    scatter_s = MAD_TO_SIGMA * float(np.median(np.abs(before_s - usual_s)))
    if longer_s < max(_LEAST_RATIO * now_s, _SIGMAS * scatter_s) or since_s.min() <= np.sort(before_s)[
        :-1
    ].max(initial=0.0):
        return None
    more_s = median(wait_s, axis=0) - median(waited_s, axis=0)
    order = np.argsort(more_s)
    if not np.isfinite(more_s).all():
        return None
    first, second = more_s[order[:2]]
    if first > _IT * longer_s or second < _NOT_IT * longer_s:
        return None
    return SlowSince(place=int(order[0]), steps=len(since_s), before_s=usual_s, since_s=now_s)
