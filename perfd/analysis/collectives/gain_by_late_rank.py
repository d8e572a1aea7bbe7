"""What the job would gain without the delay of each rank that its peers wait for."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRankGains:
    """Each (ranks,); NaN is unknown. Named as the fields of `NcclRank` that they become."""

    gain_ratio: Floats
    """Shares of a step."""
    gain_error_ratio: Floats
    """Standard errors, 0 where steps were not replayed."""
    gain_doubt_ratio: Floats
    """The same with that of the steps before, where the gain is by how much steps became longer."""
    step_s: Floats
    """How long the step takes of which the gain is a share."""
    over_steps: Floats
    """For how many steps a delay has been over."""
    late_for_steps: Floats
    """In how many steps a rank was late."""


def gains_of_late(
    losses: LateRankLosses,
    window: AnalysisWindow,
    caused: Floats,
    step_time_s: Floats,
    together: Bools | None,
) -> LateRankGains:
    """What the job would gain without the delay of each rank.

    The costliest ranks are replayed; the gain of the others is how long they are waited for, with error 0. If
    a rank became slow, its gain is by how much steps became longer since, if its peers wait that long: of
    waits that overlap computation, the replay counts only the longest, which is a lower bound. Steps after a
    fault has ended are left out. Ranks that are late in turn gain what they do over several turns.

    `caused` (ranks,) is how long each is waited for, as a share of time, and `step_time_s` (steps,) how long
    each of the newest steps took. A process with several GPUs, as those `together`, that waits for one of
    them launches nothing on the others: these idle, rather than wait in an operation. So there steps may be
    longer by more than that.
    """
    ranks = len(caused)
    gains = LateRankGains(
        gain_ratio=np.array(caused),
        gain_error_ratio=np.zeros(ranks),
        gain_doubt_ratio=np.zeros(ranks),
        step_s=np.full(ranks, losses.step_time_s(window, step_time_s)),
        over_steps=np.full(ranks, np.nan),
        late_for_steps=np.full(ranks, np.nan),
    )
    costly = highest(np.nan_to_num(caused), _MOST_REPLAYED)
    costly = costly[np.nan_to_num(caused)[costly] >= _LEAST_REPLAYED]
    if not len(costly):
        return gains
    replayed, errors = losses.gains(window, costly, step_time_s)
    gains.gain_ratio[costly] = np.clip(replayed, 0.0, 1.0)
    gains.gain_error_ratio[costly] = gains.gain_doubt_ratio[costly] = errors
    least = THRESHOLDS.straggler_certain_wait_ratio / 2
    for place in costly[gains.gain_ratio[costly] >= least].tolist():
        launched_together = together is not None and bool(together[place])
        _correct(gains, place, losses, window, step_time_s, launched_together=launched_together)
    return gains


def _correct(
    gains: LateRankGains,
    place: int,
    losses: LateRankLosses,
    window: AnalysisWindow,
    step_time_s: Floats,
    *,
    launched_together: bool,
) -> None:
    """Set what steps since a rank became late, or after it, show of its gain better than a replay of all."""
    late, others_late = losses.late_steps(place)
    stretch = late_stretch(late)
    gains.late_for_steps[place] = late.sum() if stretch is None else stretch.steps
    if stretch is None and len(late) and late.sum() < _FEWEST_LATE:
        gains.gain_ratio[place] = 0.0
    gain = float(gains.gain_ratio[place])
    if takes_turns(late, others_late):
        (over_turns,), _ = losses.gains(LONG, np.array([place]), step_time_s)
        gains.gain_ratio[place] = np.clip(over_turns, 0.0, gain)
        return
    change = step_change(step_time_s, stretch, others_late, replayed_ratio=gain) if stretch else None
    if stretch is None or change is None:
        return
    since = late[len(late) - stretch.steps - stretch.over :]
    pause = since.sum() < _PAUSE_STEPS and stretch.steps * change.since_s < _PAUSE_S
    # Where a change is over, operations are behind the log.
    if pause or (stretch.over < _OVER and is_over(step_time_s, change)):
        gains.gain_ratio[place] = 0.0
        return
    of_it = AnalysisWindow(each=stretch.steps + stretch.over) if stretch.over else window
    waited, _ = losses.gains(of_it, np.array([place]), step_time_s, at_most=True, over=stretch.over)
    most = 1.0 if launched_together else max(gain, float(waited[0]))
    gains.gain_ratio[place] = np.clip(change.gain_ratio, 0.0, most)
    error = min(gains.gain_error_ratio[place], change.error_ratio)
    gains.gain_error_ratio[place] = error
    # What a replay does not show rests on how long steps took before, too.
    gains.gain_doubt_ratio[place] = change.error_of_gain if change.gain_ratio > gain else error
    gains.step_s[place] = change.since_s
    gains.over_steps[place] = stretch.over if stretch.over >= _OVER else np.nan
