"""A rank that became slow compared with its own past: for jobs in which no other rank has the same work.

When steps become longer because of one rank, all others wait so much longer, in whatever operations they
have with it or with each other, and it alone does not. What the job would gain is what was measured: the
steps before were as fast as steps are without the fault.

Hosts have better and worse stretches of a few steps. So chance must not explain that the newest steps are the
longer ones and that it is the same rank in them, as for a rank with peers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from perfd.analysis.data.job_data import Bools, Floats
from perfd.analysis.data.robust_stats import MAD_TO_SIGMA, median, newest_by_chance, plain_median

_FEWEST_SINCE, _MOST_SINCE = 4, 20
"""Steps since the change; later the steps before are another time."""
_FEWEST_BEFORE, _MOST_BEFORE = 6, 8
"""Steps before the change with which those since are compared; older ones are another time. Chosen."""
_LEAST_RATIO = 0.08
"""By which steps must be longer: by less they scatter."""
_SIGMAS = 3.0
"""And by this many of their robust standard deviations before."""
_CHANCE = 1e-3
"""By chance alone, besides: that the newest of these steps are the long ones, and that one rank is the one
that does not wait in them."""
_MOSTLY, _SURE_SIGMAS = 0.5, 6.0
"""Of these steps, the share in which that rank must wait least, if they are longer by so many standard
deviations; else it is that of stretches. Chosen: 3.3 and 4 of 8 steps in a healthy pair (2 H100, 2026-11-28),
6.5 and more where a rank became slow and others waited least in a third of the steps."""
_STRETCH_RATIO, _STRETCH_STEPS, _STRETCH_MOSTLY = 0.15, 6, 0.75
"""Steps of healthy hosts become longer by up to this share. Below it one rank must wait least in at least
so many steps, and in this share of them. Interleaved stages took 11% longer for 15 steps, and one rank waited
least in 4 of 4, 5 of 6 and 6 of 9 (4 H200, 2026-11-26)."""
_YOUNG_STRETCH_RATIO = 0.2
"""The same with fewer steps before: hosts of a job that began a moment ago become slower in its first ten
steps or so, by 21% and once by 31% (H100, 2026-11-26). Chosen."""
_MOST_EARLIER, _FEWEST_EARLIER = 32, 8
"""Steps earlier than those before: where most are as long as those since, and not all in a row, the steps
before were only a short stretch of fast ones. Chosen."""
_OTHER_FAULT = 8
"""Steps in a row in which the same other rank waits least: they are of its fault and show nothing. Chosen."""
_PAUSES = 1
"""Steps before that may be as long, such as a checkpoint."""
_MOST_OF_IT = 0.75
"""Of the largest change, from which on an earlier one is the same. Chosen."""
_NOT_IT, _IT = 0.5, 0.25
"""Of what steps are longer, what others wait longer at least, and the slow one at most."""
_IN_TURN = 2.0
"""Of what steps are longer, what each of the others waits longer at most: where all wait for so much more,
they were late before, and ranks are late in turn. Chosen: 3.4 in a healthy tensor pair, 2.3 in sharded
training without a fault (2 and 4 H100, 2026-11-28). Real faults have less, but some only 1 or 2 s later."""


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


def became_longer(step_time_s: Floats) -> bool:
    """Whether the newest of these steps are longer than those before: else no rank became slow."""
    steps = len(step_time_s)
    if steps < _FEWEST_SINCE + _FEWEST_BEFORE:
        return False
    splits = range(_FEWEST_SINCE, min(_MOST_SINCE, steps - _FEWEST_BEFORE) + 1)
    return any(_longer_s(step_time_s, steps - since) is not None for since in splits)


def slow_since(step_time_s: Floats, waits_s: Floats, *, own_times: bool = False) -> SlowSince | None:
    """The rank, if steps since are longer than before beyond chance and all other ranks wait so much longer.

    With `own_times` a step without a rank's waits is what that rank did itself, as in one tensor group, where
    nothing runs beside what is waited for: then it may be that time which is longer beyond chance.
    `step_time_s` (steps,) and `waits_s` (steps, ranks) have the newest last, NaN where unknown; of different
    lengths only what both have is looked at.
    """
    steps = min(len(step_time_s), len(waits_s))
    if steps < _FEWEST_SINCE + _FEWEST_BEFORE or waits_s.shape[1] < 2:
        return None
    lasted, waited = step_time_s[len(step_time_s) - steps :], waits_s[len(waits_s) - steps :]
    found = [
        one
        for since in range(min(_MOST_SINCE, steps - _FEWEST_BEFORE), _FEWEST_SINCE - 1, -1)
        if (one := _changed(lasted, waited, steps - since, own_times=own_times)) is not None
    ]
    # The earliest moment from which on it holds: a few steps later it does, too. But steps that became a
    # little longer before are of another change.
    most = max((one.gain_ratio for one in found), default=0.0)
    return next((one for one in found if one.gain_ratio >= _MOST_OF_IT * most), None)


def _changed(step_time_s: Floats, waits_s: Floats, first: int, *, own_times: bool) -> SlowSince | None:
    """Who became slow with the step at that place."""
    longer_s = _longer_s(step_time_s, first)
    if longer_s is None:
        return None
    before = slice(max(0, first - _MOST_BEFORE), first)
    before_s, since_s, since_wait_s = step_time_s[before], step_time_s[first:], waits_s[first:]
    usual_s, now_s = plain_median(before_s), plain_median(since_s)
    known = np.count_nonzero(np.isfinite(waits_s[before]), axis=0)
    usual_wait_s = np.where(2 * known >= len(before_s), median(waits_s[before], axis=0), np.nan)
    more_s = median(since_wait_s, axis=0) - usual_wait_s
    order = np.argsort(more_s)
    one, next_one = more_s[order[:2]]
    wait_for_it = _NOT_IT * longer_s <= next_one <= _IN_TURN * longer_s
    if not np.isfinite(more_s).all() or one > _IT * longer_s or not wait_for_it:
        return None
    place = int(order[0])
    apart = since_wait_s - usual_wait_s
    its_steps = int((np.argmin(apart, axis=1) == place).sum())
    if longer_s < (_STRETCH_RATIO if first >= _MOST_BEFORE else _YOUNG_STRETCH_RATIO) * now_s:
        least = max(_STRETCH_STEPS, _STRETCH_MOSTLY * len(apart))
    else:
        sure = longer_s >= _SURE_SIGMAS * _scatter_s(before_s)
        least = (_MOSTLY if sure else _STRETCH_MOSTLY) * len(apart)
    if its_steps < least:
        return None
    earlier = slice(max(0, first - _MOST_BEFORE - _MOST_EARLIER), max(0, first - _MOST_BEFORE))
    own = ~_of_other_fault(waits_s[earlier] - usual_wait_s, place)
    as_long = step_time_s[earlier][own] > (usual_s + now_s) / 2
    # Those of an earlier fault of that rank are in one stretch.
    stretches = np.count_nonzero(as_long & ~np.append(False, as_long[:-1]))
    if len(as_long) >= _FEWEST_EARLIER and as_long.mean() > _MOSTLY and stretches > 1:
        return None
    shown = [_beyond_chance(before_s, since_s, apart, place)]
    if own_times and len(since_s) > _FEWEST_SINCE:
        # Where others were late in turn, steps scattered by that; what this rank did itself did not. Waits of
        # the newest step may be to come.
        own_s = step_time_s - waits_s[:, place]
        shown.append(_beyond_chance(own_s[before], own_s[first:-1], apart[:-1], place))
    if not any(shown):
        return None
    return SlowSince(place=place, steps=len(since_s), before_s=usual_s, since_s=now_s)


def _of_other_fault(more_wait_s: Floats, place: int) -> Bools:
    """(steps,): whether another rank waits least in it and in several beside it; of (steps, ranks)."""
    least = np.argmin(more_wait_s, axis=1)
    bounds = [0, *(np.flatnonzero(np.diff(least)) + 1).tolist(), len(least)]
    found = np.zeros(len(least), dtype=np.bool_)
    for start, stop in pairwise(bounds):
        found[start:stop] = stop - start >= _OTHER_FAULT and least[start] != place
    return found


def _longer_s(step_time_s: Floats, first: int) -> float | None:
    """By how much steps from that place on are longer; None if by little, or if one is unknown."""
    before_s, since_s = step_time_s[max(0, first - _MOST_BEFORE) : first], step_time_s[first:]
    now_s = plain_median(since_s)
    longer_s = now_s - plain_median(before_s)
    known = np.isfinite(before_s).all() and np.isfinite(since_s).all()
    return longer_s if known and longer_s >= _LEAST_RATIO * now_s else None


def _beyond_chance(before_s: Floats, since_s: Floats, more_wait_s: Floats, place: int) -> bool:
    """Whether times since are longer by far than they scattered before, and not by chance."""
    longer_s = plain_median(since_s) - plain_median(before_s)
    beyond = longer_s >= _SIGMAS * _scatter_s(before_s)
    return beyond and _by_chance(before_s, since_s, more_wait_s, place) <= _CHANCE


def _scatter_s(times_s: Floats) -> float:
    """Their robust standard deviation."""
    return MAD_TO_SIGMA * plain_median(np.abs(times_s - plain_median(times_s)))


def _by_chance(before_s: Floats, since_s: Floats, more_wait_s: Floats, place: int) -> float:
    """How likely the times since are that long, and that the same rank waits least in them.

    `more_wait_s` is (steps, ranks), since then.
    """
    as_long = int((before_s >= since_s.min()).sum())
    if as_long > _PAUSES:
        return 1.0
    steps, ranks = len(more_wait_s), float(more_wait_s.shape[1])
    times = int((np.argmin(more_wait_s, axis=1) == place).sum())
    same_one = min(1.0, math.comb(steps, times) * ranks ** (1 - times))
    return newest_by_chance(steps, as_long, len(before_s) + steps) * same_one
