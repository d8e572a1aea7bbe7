"""What takes the time by which some steps are longer than the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Floats, JobData
from perfd.analysis.steps.phase_timers import BACKWARD, COMMUNICATION, DATA, FORWARD, OPTIMIZER, Timers
from perfd.analysis.steps.steady_steps import SteadySteps

_LONGER_RATIO = 1.1
"""Chosen: a step that is longer than the median by less is scatter."""
_MOST = 0.5
"""The share of their excess that a phase must have to be its cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongStepsCause:
    """The phase that is longer in long steps."""

    phase: str
    timer: str
    ratio: float
    """Its share of what these steps take beyond the others, at most 1."""


def long_steps_cause(job: JobData, steady: SteadySteps) -> LongStepsCause | None:
    """The first phase, in the order of what holds what, that has most of it; None if no timer shows one.

    Forward holds the input in Megatron's timers, so input is asked first.
    """
    rows = steady.unmarked
    times = job.steps.step_time_s[rows]
    if not len(times):
        return None
    longer = times > _LONGER_RATIO * np.median(times)
    if not longer.any():
        return None
    excess_s = float((times[longer] - np.median(times[~longer])).sum())
    timers = Timers.of(job.phases, job.steps, rows)
    phases = {
        "data loading": (DATA,),
        "communication": tuple((name,) for name in COMMUNICATION),
        "the optimizer": (OPTIMIZER,),
        "forward": (FORWARD,),
        "backward": (BACKWARD,),
    }
    for phase, spellings in phases.items():
        for names in spellings:
            timer = timers.first(names)
            seconds = timers.max_s(timer) if timer else None
            ratio = _excess_ratio(seconds, longer, excess_s) if seconds is not None else None
            if timer and ratio is not None and ratio >= _MOST:
                return LongStepsCause(phase=phase, timer=timer, ratio=min(1.0, ratio))
    return None


def _excess_ratio(seconds: Floats, longer: np.ndarray, excess_s: float) -> float | None:
    """The phase's excess in the longer steps by theirs; None if it is not known in all of them."""
    usual = seconds[~longer]
    usual = usual[np.isfinite(usual)]
    if not len(usual) or not np.isfinite(seconds[longer]).all() or excess_s <= 0:
        return None
    return float((seconds[longer] - np.median(usual)).sum()) / excess_s
