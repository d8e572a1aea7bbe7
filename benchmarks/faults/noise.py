"""Distributions of the simulation's noise: two worlds, to tune by and to report by."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.faults.scenario import World
from perfd.recording import bundled
from tests.support.read_logs import read_logs

_WIDEST = 0.25
"""Of a step: what is longer was a profiler writing its trace."""


def tuning_world() -> World:
    """Steps scatter as in `dp4` and `pp4_few`; GPUs differ and drift as two H200 at their power limit did.

    In 14 clean runs of 90 steps one of the two was behind at each of a step's 25 reductions by 0.1 to 0.55%
    of the step in the mean of the last five steps, which is a difference in pace of up to 1.5%.
    """
    return World(
        name="tuning",
        residuals=_residuals("dp4", "pp4_few"),
        chip_sigma=0.005,
        drift_sigma=0.007,
        drift_steps=12,
        hiccups_per_step=0.002,
    )


def held_out_world() -> World:
    """Other recordings, GPUs that differ and drift more and more slowly, and hosts that stall more often."""
    return World(
        name="held out",
        residuals=_residuals("pp2dp2", "dp2_nccl"),
        chip_sigma=0.007,
        drift_sigma=0.01,
        drift_steps=40,
        hiccups_per_step=0.005,
    )


@cache
def _residuals(*names: str) -> tuple[float, ...]:
    """Relative deviations of step times from their median, without the first steps."""
    found: list[float] = []
    for name in names:
        (log,) = _logs(bundled(name))
        times = [step.step_time_s for step in read_logs([log]).steps if step.step_time_s]
        deviations = np.log(np.array(times[2:]) / np.median(times[2:]))
        found += deviations[np.abs(deviations) <= _WIDEST].tolist()
    return tuple(found)


def _logs(recording: Path) -> list[Path]:
    return sorted(recording.glob("*/stdout.log"))
