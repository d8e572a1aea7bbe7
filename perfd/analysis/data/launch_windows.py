"""Windows of readings of the threads that launch work: how long hosts slept, and whether loaders are busy."""

from __future__ import annotations

import numpy as np

from perfd.analysis.data.job_data import Floats, LaunchTable
from perfd.thresholds import THRESHOLDS

SETTLED = 1
"""The window that is longer than a moment."""
AWAKE = 0.05
"""Of the time: a host that slept no more while it waited for a busy GPU does not sleep to wait for it.
Chosen: 0.01 in a loop whose hosts spin (2 H100, 2026-11-26)."""
_LEAST_BEFORE_S = 1.0
"""How much of a window must be before a change to show how long hosts slept then."""
_CLOCKS_S = 0.25
"""Most by which clocks of steps and readings differ: with a later change, hosts slept more before it."""
_KNOWN_AFTER_S = 8.0
"""Of training, by when threads that launch work are mostly known: after 4 to 12 s (recordings of 2026-11)."""
_AS_LONG = 0.8
"""Of the host that sleeps longest, from which on another one sleeps for as long. Chosen."""


def slept_before_change(table: LaunchTable, window: int, since_s: Floats) -> Floats | None:
    """The share of time that ranks slept before a change, after which all of this window lies.

    The next longer window may hold some of both, so what a still longer one has beyond it is from before the
    change. Because an earlier fault may have kept hosts asleep then, the next longer window without the
    `since_s` (n,) since the change counts if ranks slept less in it.
    """
    spans_s, slept_s = table.span_s, table.asleep_ratio * table.span_s
    later = [at for at in range(window + 1, len(spans_s)) if (spans_s[at] > spans_s[at - 1]).all()]
    if not later:
        return None
    # Without a third one, mixing only makes the difference smaller.
    part, whole = (later[0], later[1]) if len(later) > 1 else (window, later[0])
    long_ago = (slept_s[whole] - slept_s[part]) / (spans_s[whole] - spans_s[part])
    after_s = since_s - _CLOCKS_S
    left_s = spans_s[later[0]] - after_s
    slept_before_s = slept_s[later[0]] - table.asleep_ratio[window] * after_s
    just_before = slept_before_s / np.maximum(left_s, _LEAST_BEFORE_S)
    just_before = np.where(left_s >= _LEAST_BEFORE_S, np.maximum(just_before, 0.0), np.nan)
    return np.asarray(np.fmin(long_ago, just_before))


def awaits_hosts(table: LaunchTable | None, trained_s: float) -> bool:
    """Whether hosts are read, and the threads that launch work are not known yet: they take some seconds.

    `trained_s` is how long the job has trained. Threads of some jobs are never known.
    """
    unknown = table is not None and not np.isfinite(table.asleep_ratio[-1]).all()
    return unknown and 0 < trained_s < _KNOWN_AFTER_S


def never_sleep(table: LaunchTable | None) -> bool:
    """Whether hosts of all ranks run all the time: they launch work, compute, or spin while they wait."""
    return table is not None and bool((table.asleep_ratio[SETTLED] <= AWAKE).all())


def loaders_all_busy(table: LaunchTable) -> bool:
    """Whether the loader workers of all ranks are never done; False where they are not seen."""
    return bool((table.loader_busy_ratio[SETTLED] >= THRESHOLDS.loader_workers_busy_ratio).all())


def asleep_alike(table: LaunchTable, window: int) -> bool:
    """Whether hosts of several ranks sleep for a good part of the time, and all for as long as each other."""
    asleep = table.asleep_ratio[window]
    if len(asleep) < 2:
        return False
    return bool(asleep.min() >= max(THRESHOLDS.idle_ratio, _AS_LONG * asleep.max()))


def loaders(table: LaunchTable, window: int) -> tuple[int | None, float | None]:
    """The fewest loader workers of a rank, and the least share of time they are busy; None if unknown."""
    if np.isnan(table.loader_workers).all():
        # Their number is absent where a process has none.
        return 0, None
    workers, busy = float(np.min(table.loader_workers)), float(np.min(table.loader_busy_ratio[window]))
    if not np.isfinite([workers, busy]).all():
        return None, None
    return int(workers), busy
