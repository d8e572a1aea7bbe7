"""A lasting growth of step time: the newest steps by the job's earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Bools, StepTable
from perfd.analysis.data.robust_stats import median_of, sigma_of
from perfd.analysis.steps.steady_steps import steady_rows
from perfd.model import Event
from perfd.thresholds import THRESHOLDS

_FEWEST_EARLIER = 10
"""Lines from which the usual step time and its scatter are known."""
_SIGMAS = 4.0
"""Of the job's own scatter: by chance three steps in a row are never so far out."""
_NEWEST, _NEWEST_SHARE = 50, 4
"""Lines in which a growth is looked for, and which are not part of the baseline; in a young job the newest
quarter, as a few early lines would not show its scatter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeChange:
    """How long a step took before, and by how much longer the newest ones are for as long as that lasts."""

    baseline_s: float
    """Median of the lines before the newest 50; in a young job, before the newest quarter."""
    growth_ratio: float
    """Newest steps over the baseline, less 1; 0 where no growth has lasted."""
    since_step: int | None = None
    """The first of the longer steps, if it is among the newest; None without growth."""


def step_time_change(steps: StepTable, events: Sequence[Event]) -> StepTimeChange | None:
    """The lasting growth of a job's step time; None with too few steps.

    It begins with three lines in a row that are a tenth longer than the baseline, and longer than the job's
    own scatter explains, and ends with three in a row that are not. So a single pause, every fifth step that
    stalls, and steps that scatter around the limit neither begin nor end one. What has lasted for most of the
    job is its usual pace.
    """
    rows = steady_rows(steps, events).unmarked
    times = steps.step_time_s[rows]
    run = THRESHOLDS.step_regression_count
    newest = times[-max(run, min(_NEWEST, len(times) // _NEWEST_SHARE)) :]
    earlier = times[: len(times) - len(newest)]
    baseline_s, sigma_s = median_of(earlier), sigma_of(earlier)
    if len(earlier) < _FEWEST_EARLIER or baseline_s is None or sigma_s is None:
        return None
    limit_s = baseline_s + max(THRESHOLDS.step_regression_ratio * baseline_s, _SIGMAS * sigma_s)
    longer = newest > limit_s
    began, ended = _last_run(longer, run), _last_run(~longer, run)
    if began <= ended:
        return StepTimeChange(baseline_s=baseline_s, growth_ratio=0.0)
    grown = newest[ended + run :]
    return StepTimeChange(
        baseline_s=baseline_s,
        growth_ratio=float(np.median(grown)) / baseline_s - 1,
        since_step=int(steps.step[rows[-len(grown)]]) if ended >= 0 else None,
    )


def _last_run(flags: Bools, length: int) -> int:
    """Where the last `length` flags in a row that are all set begin; before all others if there are none."""
    if len(flags) < length:
        return -length
    runs = np.lib.stride_tricks.sliding_window_view(flags, length).all(axis=1)
    found = np.flatnonzero(runs)
    return int(found[-1]) if len(found) else -length
