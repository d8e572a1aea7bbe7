"""A rank that has just become slow: the more it stands out, the fewer steps it takes to rule out chance."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from perfd.analysis.collectives.late_rank_cost import CausedLosses, Lateness
from perfd.analysis.collectives.step_losses import AnalysisWindow
from perfd.analysis.data.job_data import Bools, Floats, Ints
from perfd.analysis.data.robust_stats import newest_by_chance

_FEWEST, _FEW = 4, 10
"""Steps since the onset after which it is first reported."""
EARLIER = AnalysisWindow(each=40)
"""All that are looked at."""
NEWEST = AnalysisWindow(each=40, reported=_FEWEST + 1)
"""The last one may be unreported yet."""
_LEAST = 0.05
"""Of the time, lost in each of them: by less one is late by turns, as GPUs warm up and cool."""
_OTHER_FAULT = 8
"""Steps in a row in which another rank loses that much: they are of its fault, and no chance. Chosen."""
_CHANCE_PER_S = 2e-6
"""Of each number of newest steps, if nothing has changed. Seven numbers are tried at each step, so that is
one false alarm in 20 hours at most, however long a step is, before `_LEAST` is applied as well."""
_CHANCE_LATER_PER_S = 1e-9
"""The same for each larger number, by which it stays reported until blocks of recent steps show it."""


def possible(newest: CausedLosses) -> bool:
    """Whether `onset` may find one in steps of which these are the `NEWEST`."""
    lost = newest.at_least[:, np.isfinite(newest.at_least).any(axis=0)]
    enough = lost.shape[1] >= _FEWEST
    return not enough or bool((lost[:, -_FEWEST:] >= _LEAST).all(axis=1).any())


def onset(by_step: Lateness, peers: Ints, step_s: float) -> Lateness | None:
    """The newest steps alone, if one rank is late in all of them as none was before; else None.

    If nothing had changed, steps could have come in any order, and so could the ranks of a group in each.
    Then the chance that the newest k of n steps are among the k + j in which most is lost is C(k + j, k) /
    C(n, k), and that one of g ranks is the late one in each of them is another 1 / g^(k - 1); where several
    are as late in a step, by as much more. So of steps of half a second 4 suffice after 13 quiet ones among
    8 ranks, and 5 after 21 among 2; a pause before costs a step more. Fewer than 4 never do: when all begin
    to scatter at once, only the second chance is left.
    `peers` is how many ranks the group of each has, and `step_s` how long a step takes.
    """
    known = np.isfinite(by_step.at_least).any(axis=0)
    known_ranks = np.isfinite(by_step.at_least).any(axis=1)
    lost = np.where(np.isfinite(by_step.at_least), by_step.at_least, 0.0)[:, known]
    steps = lost.shape[1]
    of_step: Floats = lost.max(axis=0, initial=0.0)
    for newest in range(_FEWEST, steps):
        least = lost[:, -newest:].min(axis=1)
        rank = int(np.argmax(least))
        if least[rank] < _LEAST:
            return None
        before = of_step[:-newest]
        of_job = before[~_of_other_fault(lost[:, :-newest], rank)]
        chance = min(
            newest_by_chance(newest, int((known_before >= least[rank]).sum()), newest + len(known_before))
            for known_before in (before, of_job)
        )
        together = (lost[:, -newest:] >= least[rank]).sum(axis=0) / max(1, int(known_ranks.sum()))
        of_rank = np.maximum(together, 1 / max(1, int(peers[rank])))
        allowed_per_s = _CHANCE_PER_S if newest <= _FEW else _CHANCE_LATER_PER_S
        if chance * float(np.sort(of_rank)[1:].prod()) <= allowed_per_s * step_s:
            taken = np.flatnonzero(known)[-newest:]
            return Lateness(*(getattr(by_step, field.name)[:, taken] for field in fields(by_step)))
    return None


def _of_other_fault(lost: Floats, rank: int) -> Bools:
    """(steps,): whether another rank is late in it and in several beside it; `lost` is (ranks, steps)."""
    others = np.delete(lost, rank, axis=0)
    found: Bools = np.zeros(lost.shape[1], dtype=np.bool_)
    if others.shape[1] < _OTHER_FAULT or not len(others):
        return found
    in_a_row = sliding_window_view(others >= _LEAST, _OTHER_FAULT, axis=1).all(axis=2).any(axis=0)
    for first in np.flatnonzero(in_a_row).tolist():
        found[first : first + _OTHER_FAULT] = True
    return found
