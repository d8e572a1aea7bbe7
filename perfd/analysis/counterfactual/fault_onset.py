"""Since when a rank costs time, and how much longer steps are since then.

A rank that was as fast as its peers some steps ago is its own closest peer: what its fault costs is at most
what steps last longer since. So a rank that became slow behind hosts that are slower still gains nothing.
"""

from __future__ import annotations

import numpy as np

from perfd.analysis.data.job_data import Bools, Floats

_FEWEST_BEFORE = 5
"""Steps without the fault."""
_MOSTLY = 0.8
"""Of the steps since, and not of those before."""
_MOST_BEFORE = 10
"""Steps before the fault that its own are compared with: other faults may lie further back."""
_SEEN_LATER = 5
"""Steps after which peers may be seen to wait at last: hosts and stages run ahead of each other."""


def steps_since(late: Bools) -> int | None:
    """Of how many of the newest steps it is true; None where it has been so all the time, or comes and goes.

    `late` is one flag a step, the newest last.
    """
    signs = np.where(late, 1, -1)
    # Of each number of newest steps, how many are as they should be, and how many before are not.
    after = np.append(np.cumsum(signs[::-1])[::-1], 0)
    fit = after - np.append(0, np.cumsum(signs))
    first = int(np.argmax(fit))
    before, since = late[:first], late[first:]
    if len(before) < _FEWEST_BEFORE or not len(since):
        return None
    apart = since.mean() >= _MOSTLY and before.mean() <= 1 - _MOSTLY
    return len(since) if apart else None


def change_ratio(step_time_s: Floats, newest: int) -> float | None:
    """The share of a step by which about so many last longer than those before; None where unknown.

    `step_time_s` has one entry per step, the newest last. It is negative where steps became shorter.
    """
    at_onset = _change_ratio(step_time_s, newest)
    if at_onset is None or at_onset <= 0:
        return at_onset
    earlier = (_change_ratio(step_time_s, newest + more) for more in range(1, _SEEN_LATER + 1))
    return max([at_onset, *(change for change in earlier if change is not None)])


def _change_ratio(step_time_s: Floats, newest: int) -> float | None:
    before, since = step_time_s[:-newest], step_time_s[max(0, len(step_time_s) - newest) :]
    before = before[-_MOST_BEFORE:]
    before, since = before[np.isfinite(before)], since[np.isfinite(since)]
    if len(before) < _FEWEST_BEFORE or not len(since):
        return None
    after_s = float(np.median(since))
    return 1 - float(np.median(before)) / after_s if after_s > 0 else None
