"""In which of the newest steps a rank costs time, and how much longer these are than those before.

A rank that was as fast as its peers some steps ago is its own closest peer: what its fault costs is at most
what steps last longer with it. So a rank that became slow behind hosts that are slower still gains nothing.
Steps after a fault has ended do not count: a mean over both would be of neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Bools, Floats
from perfd.analysis.data.robust_stats import median, median_error, plain_median, plain_quantile

_USUAL_STEPS = (10, 20)
"""Newest steps by which it is late as usual, in some of them: a fault may have just begun, or ended."""
_USUAL_QUANTILE = 0.8
"""Of the lateness in those steps: above the noise, below single late steps. Chosen."""
_FEWEST_BEFORE = 5
"""Steps without the fault."""
_INSIDE, _OUTSIDE = 2 / 3, 0.2
"""Of the steps of a fault, at least, and of those before and after, at most."""
_FEWEST_ENDED = 4
"""Steps of a fault that has ended: fewer may be a stall or a pause."""
_QUIET_BEFORE = 20
"""Steps before in which the rank is hardly late; other faults of it may lie further back."""
_MOST_BEFORE = 10
"""Steps before the fault that its own are compared with: other faults may lie further back."""
_MOST_AFTER = 10
"""Steps after the fault: later, it is not what the job loses now."""
_SEEN_LATER = 5
"""Steps after which peers may be seen to wait at last: hosts and stages run ahead of each other."""
_SHORT_AGAIN = 5
"""Steps that show that a change is over; stalls come more often than that. Chosen."""
_DOUBTED = 0.5
"""Of what a replay gains: where steps became longer by less, those before may be of another fault. Chosen."""
_MISSED = 0.25
"""Of the steps of a stretch, at most: operations of some are sampled away or lost, so it has more steps."""
_TURN_STEPS = 8
"""Steps in which a rank is late that count as its turn, if fewer lie between two of them. Chosen."""
_BETWEEN_TURNS = 3
"""Steps between two turns, at most: after a fault there are more. Chosen."""
_REPORTED_S = 1.5
"""Operations are reported each second, so that with short steps the log is further ahead."""


def late_steps(excess_s: Sequence[Floats], usual_of_s: Sequence[Floats] | None = None) -> Bools:
    """Of each step, the newest last, whether a rank came late by half and more of what is usual for it now.

    `excess_s` is by operation, (steps,) each: by how much later than its peers it came. For some operations
    of a step it has caught up, so that those count for which it was latest. With `usual_of_s`, as long, what
    is usual is that of another rank.
    """
    latest_s = _latest_s(excess_s)
    usual_of = latest_s if usual_of_s is None else _latest_s(usual_of_s)
    newest_s = [known for count in _USUAL_STEPS if len(known := _known(usual_of[-count:]))]
    usual_s = max((plain_quantile(known, _USUAL_QUANTILE) for known in newest_s), default=0.0)
    return np.asarray(latest_s > max(usual_s, 0.0) / 2)


def _latest_s(excess_s: Sequence[Floats]) -> Floats:
    steps = max(map(len, excess_s), default=0)
    latest_s = np.full(steps, np.nan)
    for of_operation_s in excess_s:
        held = slice(steps - len(of_operation_s), steps)
        latest_s[held] = np.fmax(latest_s[held], of_operation_s)
    return latest_s


def _known(values: Floats) -> Floats:
    return values[np.isfinite(values)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LateStretch:
    """Steps in a row in which a rank is late, after some in which it is not."""

    steps: int
    over: int = 0
    """Newest steps since the last one of them; 0 while the rank is late."""


def late_stretch(late: Bools) -> LateStretch | None:
    """The newest such steps; None where the rank has been late all the time, or comes and goes.

    `late` is one flag a step, the newest last.
    """
    # Flags inside less flags outside are the most where the stretch begins and ends.
    fit = np.append(0, np.cumsum(np.where(late, 1, -1)))
    lowest = np.minimum.accumulate(fit)
    end = len(late) - int(np.argmax((fit - lowest)[: -_MOST_AFTER - 2 : -1]))
    first = int(np.argmin(fit[: end + 1]))
    before, since, after = late[:first][-_QUIET_BEFORE:], late[first:end], late[end:]
    if len(before) < _FEWEST_BEFORE or not len(since) or not since[-1]:
        return None
    apart = since.mean() >= _INSIDE and before.mean() <= _OUTSIDE
    few_late = after.sum() <= max(1.0, _OUTSIDE * len(after))
    ended = not len(after) or (len(since) >= _FEWEST_ENDED and few_late)
    return LateStretch(steps=len(since), over=len(after)) if apart and ended else None


def takes_turns(late: Bools, others_late: Bools) -> bool:
    """Whether a rank is late for many steps in a row, right after that another one, and then the first again.

    Hosts that limit a job run ahead of each other so: which of them is late in the newest steps is chance.
    Both have one flag a step, the newest last.
    """
    steps = min(len(late), len(others_late))
    whose = np.where(late[len(late) - steps :], 1, np.where(others_late[len(others_late) - steps :], -1, 0))
    at = np.flatnonzero(whose)
    apart = (np.diff(whose[at]) != 0) | (np.diff(at) > _TURN_STEPS)
    begins = np.flatnonzero(np.append(True, apart)[: len(at)])
    ends = np.flatnonzero(np.append(apart, True)[: len(at)])
    long = ends - begins >= _TURN_STEPS - 1
    first, last = at[begins[long]], at[ends[long]]
    after_other = (whose[first[1:]] != whose[first[:-1]]) & (first[1:] - last[:-1] <= _BETWEEN_TURNS + 1)
    return bool((after_other[1:] & after_other[:-1]).any())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """How long steps take with a fault, and took before."""

    before_s: float
    since_s: float
    error_s: float
    """The standard error of `since_s`."""
    before_error_s: float = 0.0
    """And that of `before_s`."""

    @property
    def gain_ratio(self) -> float:
        """The share of a step that the job would gain without; negative where steps became shorter."""
        return 1 - self.before_s / self.since_s

    @property
    def error_ratio(self) -> float:
        """`error_s`, as a share of a step."""
        return self.error_s / self.since_s

    @property
    def error_of_gain(self) -> float:
        """The standard error of `gain_ratio`."""
        return math.hypot(self.before_error_s, self.error_s * self.before_s / self.since_s) / self.since_s


def step_change(
    step_time_s: Floats,
    stretch: LateStretch,
    others_late: Bools | None = None,
    *,
    replayed_ratio: float = 0.0,
) -> StepChange | None:
    """About the steps of the stretch and those before, by the log; None where unknown.

    `step_time_s` has one entry per step, the newest last, and so has `others_late`: where steps became longer
    by much less than a replay gains, steps before in which another rank was late were longer for its fault.
    """
    found = _change_with_delay(step_time_s, stretch)
    if others_late is None or found is None or found.gain_ratio >= _DOUBTED * replayed_ratio:
        return found
    apart = _change_with_delay(_without(step_time_s, stretch, others_late), stretch)
    return found if apart is None or apart.gain_ratio < found.gain_ratio else apart


def is_over(step_time_s: Floats, change: StepChange) -> bool:
    """Whether the newest steps of the log all are nearer to what steps took before the change."""
    newest_s = step_time_s[-_SHORT_AGAIN:]
    middle_s = (change.before_s + change.since_s) / 2
    return change.gain_ratio > 0 and len(newest_s) == _SHORT_AGAIN and bool((newest_s <= middle_s).all())


def _without(step_time_s: Floats, stretch: LateStretch, others_late: Bools) -> Floats:
    """Without those steps before the stretch."""
    steps = len(step_time_s)
    late = np.zeros(steps, dtype=np.bool_)
    newest = min(steps, len(others_late))
    late[steps - newest :] = others_late[len(others_late) - newest :]
    late[max(0, steps - stretch.steps - stretch.over) :] = False
    return step_time_s[~late]


def _change_with_delay(step_time_s: Floats, stretch: LateStretch) -> StepChange | None:
    """The largest change, as operations may be some steps behind the log."""
    at_onset = _sides(step_time_s, stretch.steps, stretch.over)
    if at_onset is None:
        return None
    later = max(_seen_later(step_time_s), int(_MISSED * stretch.steps))
    if _gain_ratio(at_onset) <= 0 and later <= _SEEN_LATER and not stretch.over:
        return _change(at_onset)
    shifts = range(1, later + 1)
    others = [_sides(step_time_s, stretch.steps + more, stretch.over) for more in shifts]
    if stretch.over:
        others += [_sides(step_time_s, stretch.steps, stretch.over + more) for more in shifts]
    return _change(max([at_onset, *filter(None, others)], key=_gain_ratio))


def _seen_later(step_time_s: Floats) -> int:
    """By how many steps operations may be behind the log at most."""
    usual_s = float(median(step_time_s[-_MOST_BEFORE:]))
    if not usual_s * len(step_time_s) > 0:
        return _SEEN_LATER
    return max(_SEEN_LATER, math.ceil(min(_REPORTED_S / usual_s, len(step_time_s))))


def _sides(step_time_s: Floats, newest: int, over: int) -> tuple[Floats, Floats] | None:
    """What steps took before and since; None where too little is known."""
    end = max(0, len(step_time_s) - over)
    first = max(0, end - newest)
    before, since = step_time_s[:first], step_time_s[first:end]
    before = before[-_MOST_BEFORE:]
    before, since = _known(before), _known(since)
    if len(before) < _FEWEST_BEFORE or not len(since):
        return None
    return (before, since) if plain_median(since) > 0 else None


def _gain_ratio(sides: tuple[Floats, Floats]) -> float:
    """That of their `StepChange`, without its errors, which take most of the time."""
    before, since = sides
    return 1 - plain_median(before) / plain_median(since)


def _change(sides: tuple[Floats, Floats]) -> StepChange:
    before, since = sides
    return StepChange(
        before_s=plain_median(before),
        since_s=plain_median(since),
        error_s=float(median_error(since)),
        before_error_s=float(median_error(before)),
    )
