"""Waiting that hides in the phases of a training loop: where one rank takes longer, another waits later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Floats
from perfd.analysis.steps import Timers
from perfd.thresholds import THRESHOLDS

_FEWEST_STEPS = 5
"""With timers; the median of fewer is not trusted. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPair:
    """Two ranks, one of which waits for the other; which one is unknown."""

    longer_forward: int
    longer_backward: int
    seconds: float
    """Median a step."""


def waiting_pair(timers: Timers, step_time_s: Floats) -> WaitingPair | None:
    """Of a job of two ranks those that are longer in forward and in backward by about as much; else None."""
    phases = timers.computing_by_rank_s()
    if phases is None or not timers.hold_waiting or phases[0].shape[1] != 2:
        return None
    forward, backward = (phase[:, 0] - phase[:, 1] for phase in phases)
    known = np.isfinite(forward + backward)
    if np.count_nonzero(known) < _FEWEST_STEPS:
        return None
    forward, backward, step_s = forward[known], backward[known], step_time_s[known]
    # How much more the first one takes in forward and less in backward; negative where it is the second one.
    traded_s = np.sign(forward) * np.where(forward * backward < 0, np.minimum(abs(forward), abs(backward)), 0)
    typical_s = float(np.median(traded_s))
    alike = np.count_nonzero(np.sign(traded_s) == np.sign(typical_s))
    least_s = THRESHOLDS.straggler_wait_ratio * float(np.median(step_s))
    if abs(typical_s) < least_s or alike < THRESHOLDS.straggler_persistence_ratio * len(traded_s):
        return None
    longer = 0 if typical_s > 0 else 1
    return WaitingPair(longer_forward=longer, longer_backward=1 - longer, seconds=abs(typical_s))
