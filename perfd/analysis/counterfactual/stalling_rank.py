"""Ranks that stall at regular intervals: reported after their third stall.

The steps that one stalls in are longer than the usual one, all other ranks wait so much longer in them, and
it does not. By chance one rank would hardly be the one three times, and at equal distances. Garbage
collection and a checkpoint by one rank look so; ranks of a node that stall together, such as for a health
check, do not wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from perfd.analysis.data.job_data import Floats, Ints
from perfd.analysis.data.robust_stats import median

_STEPS = 40
"""The newest, in which stalls are looked for."""
_FEWEST = 3
"""Stalls of one rank: between two there is only one distance, so nothing that could be regular."""
_SHORTEST_STEPS = 3
"""From stall to stall. At shorter distances any few long steps are regular, as those of a profiler are."""
_LEAST_RATIO = 0.25
"""Of the usual step, by which a step with a stall is longer."""
_LEAST_BESIDE = 0.1
"""Of the time, what stalls cost at least where another long step is one of them. Chosen."""
_NEWER, _OLDER = 3, 1
"""Steps by which operations and the log's lines may be apart."""
_NOT_IT, _IT = 0.5, 0.25
"""Of what a step is longer, what others wait longer at least, and the stalling rank at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicStalls:
    """One rank, or some together, that stall each so many steps."""

    places: tuple[int, ...]
    period_steps: int
    stalls: int
    usual_s: float
    """A step without a stall, and with one."""
    stalled_s: float
    gain_ratio: float
    """The share of all steps' time that the job would gain without the stalls."""


def stalled_steps(step_time_s: Floats) -> Ints:
    """Which of the newest 40 steps are too long at equal distances; the newest is 0, the one before it 1.

    Empty where fewer than three are, or the newest of them is longer ago than their distance.
    """
    newest = step_time_s[::-1][:_STEPS]
    usual_s = float(np.nanmedian(newest)) if np.isfinite(newest).any() else np.nan
    ago = np.flatnonzero(newest >= (1 + _LEAST_RATIO) * usual_s)
    none = np.zeros(0, dtype=np.int64)
    if len(ago) < _FEWEST:
        return none
    distances = np.diff(ago)
    alike = np.abs(distances - distances[0]) <= 1
    # As far back as they are regular.
    regular = len(alike) if alike.all() else int(np.argmin(alike))
    if regular + 1 < _FEWEST or distances[:regular].min() < _SHORTEST_STEPS or ago[0] > distances[0]:
        return none
    return ago[: regular + 1]


def periodic_stalls(step_time_s: Floats, waits_s: Floats) -> PeriodicStalls | None:
    """The ranks that stall, if they are the same each time.

    `step_time_s` (steps,) and `waits_s` (steps, ranks) have the newest last, NaN where unknown.
    """
    ago = stalled_steps(step_time_s)
    ago = ago[ago < len(waits_s) - _OLDER]
    if len(ago) < _FEWEST or waits_s.shape[1] < 2:
        return None
    newest, waited = step_time_s[::-1][:_STEPS], waits_s[::-1][:_STEPS]
    usual_s = float(np.nanmedian(newest))
    usual_wait_s = median(waited, axis=0)
    waited_more_s = waited - usual_wait_s
    culprits = [_culprits(waited_more_s, int(step), newest[step] - usual_s) for step in ago]
    # Operations arrive a little later than a line of the log; and a step may be long for another reason, too,
    # such as an evaluation: then it takes one more, and stalls that cost a good part of a step.
    first = 0 if culprits[0] else 1
    known = list(takewhile(bool, culprits[first:]))
    others = first + len(known) < len(ago)
    ago = ago[: first + len(known)]
    if len(ago) < _FEWEST + others or len(set(culprits) - {()}) != 1:
        return None
    period = float(np.diff(ago).mean())
    stalled_s = float(np.median(newest[ago]))
    longer_s = (stalled_s - usual_s) / period
    gain_ratio = longer_s / (usual_s + longer_s)
    if others and gain_ratio < _LEAST_BESIDE:
        return None
    return PeriodicStalls(
        places=known[0],
        period_steps=round(period),
        stalls=len(ago),
        usual_s=usual_s,
        stalled_s=stalled_s,
        gain_ratio=gain_ratio,
    )


def _culprits(more_s: Floats, step: int, longer_s: float) -> tuple[int, ...]:
    """The ranks that do not wait longer while all others do: half of all at most. Else none.

    Operations may be counted for a step beside it, rather a newer one.
    """
    around = more_s[max(0, step - _NEWER) : step + _OLDER + 1]
    of_step = around.max(axis=0)
    wait, stall = of_step >= _NOT_IT * longer_s, of_step <= _IT * longer_s
    each_is_known = np.isfinite(around).all() and (wait | stall).all()
    return tuple(np.flatnonzero(stall).tolist()) if each_is_known and stall.sum() <= wait.sum() else ()
