"""What the job would gain without the delay of each rank that its peers wait for."""

from __future__ import annotations

import numpy as np

from perfd.analysis.collectives.late_rank_cost import LONG, LateRankLosses
from perfd.analysis.collectives.step_losses import AnalysisWindow
from perfd.analysis.counterfactual.fault_onset import is_over, late_stretch, step_change, takes_turns
from perfd.analysis.data.job_data import Bools, Floats
from perfd.analysis.data.robust_stats import highest
from perfd.thresholds import THRESHOLDS

_MOST_REPLAYED = 16
"""Ranks whose steps are replayed without their delay, which takes time: those that cost others the most."""
_OVER = 3
"""Steps without a rank's delay that say that it is over: operations of the newest may be missing."""
_FEWEST_LATE = 4
"""Steps in which a rank is late, if none before is known in which it was not; fewer are a pause. Chosen."""
_PAUSE_STEPS, _PAUSE_S = 6, 2.0
"""Fewer late steps within less time, after some that were not, are a pause. By hosts of healthy jobs."""
_LEAST_REPLAYED = 0.01
"""Of a step: less is not worth a replay."""


def gains_of_late(
    losses: LateRankLosses,
    window: AnalysisWindow,
    caused: Floats,
    step_time_s: Floats,
    together: Bools | None,
) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats]:
    """By rank: its gain, the error of that, the step of which it is a share, for how long it is over and was.

    And last the error with that of the steps before, where the gain is by how much steps became longer.

    The costliest ranks are replayed; the gain of the others is how long they are waited for, with error 0. If
    a rank became slow, its gain is by how much steps became longer since, if its peers wait that long: of
    waits that overlap computation, the replay counts only the longest, which is a lower bound. Steps after a
    fault has ended are left out. Ranks that are late in turn gain what they do over several turns.

    A process with several GPUs that waits for one of them launches nothing on the others: these idle, rather
    than wait in an operation. So there steps may be longer by more than that.
    """
    gains, errors, doubts = np.array(caused), np.zeros(len(caused)), np.zeros(len(caused))
    of_step_s = np.full(len(caused), losses.step_time_s(window, step_time_s))
    over, late_for = np.full((2, len(caused)), np.nan)
    costly = highest(np.nan_to_num(caused), _MOST_REPLAYED)
    costly = costly[np.nan_to_num(caused)[costly] >= _LEAST_REPLAYED]
    if not len(costly):
        return gains, errors, of_step_s, over, late_for, doubts
    replayed, errors[costly] = losses.gains(window, costly, step_time_s)
    doubts[costly] = errors[costly]
    gains[costly] = np.clip(replayed, 0.0, 1.0)
    for place in costly[gains[costly] >= THRESHOLDS.straggler_certain_wait_ratio / 2].tolist():
        late, others_late = losses.late_steps(place)
        stretch = late_stretch(late)
        late_for[place] = late.sum() if stretch is None else stretch.steps
        if stretch is None and len(late) and late.sum() < _FEWEST_LATE:
            gains[place] = 0.0
        if takes_turns(late, others_late):
            (over_turns,), _ = losses.gains(LONG, np.array([place]), step_time_s)
            gains[place] = np.clip(over_turns, 0.0, gains[place])
            continue
        gain = float(gains[place])
        change = step_change(step_time_s, stretch, others_late, replayed_ratio=gain) if stretch else None
        if stretch is None or change is None:
            continue
        since = late[len(late) - stretch.steps - stretch.over :]
        pause = since.sum() < _PAUSE_STEPS and stretch.steps * change.since_s < _PAUSE_S
        # Where a change is over, operations are behind the log.
        if pause or (stretch.over < _OVER and is_over(step_time_s, change)):
            gains[place] = 0.0
            continue
        of_it = AnalysisWindow(each=stretch.steps + stretch.over) if stretch.over else window
        most, _ = losses.gains(of_it, np.array([place]), step_time_s, at_most=True, over=stretch.over)
        least = max(gain, float(most[0]))
        most_ratio = 1.0 if together is not None and together[place] else least
        gains[place] = np.clip(change.gain_ratio, 0.0, most_ratio)
        errors[place] = doubts[place] = min(errors[place], change.error_ratio)
        if change.gain_ratio > gain:
            # What a replay does not show rests on how long steps took before, too.
            doubts[place] = change.error_of_gain
        of_step_s[place] = change.since_s
        over[place] = stretch.over if stretch.over >= _OVER else np.nan
    return gains, errors, of_step_s, over, late_for, doubts
