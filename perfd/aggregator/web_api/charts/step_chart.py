"""How step time, MFU, loss and phases of a job went, in few enough points to draw."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfd.aggregator.web_api.charts.significant_digits import significant
from perfd.analysis.data.job_data import Floats, PhaseTable, StepTable
from perfd.analysis.data.robust_stats import median
from perfd.analysis.diagnosis import JobSummary
from perfd.analysis.steps import BACKWARD, FORWARD, OPTIMIZER, Timers, steady_rows
from perfd.model import Event

_TREND_S = 3600.0
"""The newest steps that the small chart shows."""
_TREND_POINTS = 30
"""As many as a line of 90 pixels shows."""
_TREND_DIGITS = 3
"""Significant digits of a sparkline's points, which are some 20 pixels high."""
_PHASES = {"forward": FORWARD, "backward": BACKWARD, "optimizer": OPTIMIZER}


def progress_columns(
    steps: StepTable,
    events: Sequence[Event],
    summary: JobSummary,
    points: int,
    *,
    phases: PhaseTable | None = None,
    within: tuple[float, float] | None = None,
    newest_s: float | None = None,
) -> dict[str, Any]:
    """The columns of schema perfd.series/1, at most `points` long.

    They are of the steps `within` two numbers, and of those in the seconds before the newest one.

    A point stands for as many neighboring steps as that takes: times, MFU, loss and phases are their
    medians, `step_time_max_s` the slowest, `step` and `time_unix_s` those of the last.
    """
    steady = np.zeros(len(steps), dtype=bool)
    steady[steady_rows(steps, events).rows] = True
    chosen = _chosen(steps, within, newest_s)
    steps, steady = steps.rows(chosen), steady[chosen]
    count = len(steps)
    size = max(1, -(-count // points))
    last = np.minimum(np.arange(0, count, size) + size, count) - 1

    def medians(values: Floats) -> list[float]:
        return [float(value) for value in median(_groups(values, size))]

    return {
        "step": steps.step[last].tolist(),
        "time_unix_s": steps.time_unix_s[last].tolist(),
        "step_time_s": medians(steps.step_time_s),
        "step_time_max_s": np.fmax.reduce(_groups(steps.step_time_s, size), axis=1).tolist(),
        "mfu_ratio": medians(_mfu(steps, summary)),
        "loss": medians(steps.loss),
        "phases_s": {name: medians(values) for name, values in _phases(phases, steps).items()},
        "steady": (_groups(steady.astype(np.float64), size) == 1).any(axis=1).tolist(),
    }


def trend(time_unix_s: Floats, step_time_s: Floats) -> list[float]:
    """Step time over the hour before the newest step, as medians of neighbors; for a line of a table."""
    known = np.isfinite(time_unix_s) & np.isfinite(step_time_s)
    times, values = time_unix_s[known], step_time_s[known]
    if not len(times):
        return []
    values = values[times > times.max() - _TREND_S]
    size = max(1, -(-len(values) // _TREND_POINTS))
    return significant(median(_groups(values, size)).tolist(), _TREND_DIGITS)


def _chosen(
    steps: StepTable, within: tuple[float, float] | None, newest_s: float | None
) -> NDArray[np.bool_]:
    low, high = within or (-math.inf, math.inf)
    chosen = (steps.step >= low) & (steps.step <= high)
    if newest_s is not None and len(steps):
        chosen &= steps.time_unix_s >= np.fmax.reduce(steps.time_unix_s) - newest_s
    return chosen


def together(earlier: StepTable, later: StepTable) -> StepTable:
    """Both tables as one, without what is in the later one already."""
    if not len(later):
        return earlier
    kept = earlier.rows(earlier.step < later.step[0])
    columns = [field.name for field in dataclasses.fields(StepTable)]
    return StepTable(
        **{name: np.concatenate([getattr(kept, name), getattr(later, name)]) for name in columns}
    )


def _phases(phases: PhaseTable | None, steps: StepTable) -> Mapping[str, Floats]:
    """Seconds of each step in each phase that has a timer, of the slowest rank."""
    if phases is None or not len(phases):
        return {}
    timers = Timers.of(phases, steps, np.arange(len(steps)))
    found = {name: timers.max_s(timer) for name, names in _PHASES.items() if (timer := timers.first(names))}
    return {name: values for name, values in found.items() if values is not None}


def _mfu(steps: StepTable, summary: JobSummary) -> Floats:
    """MFU of each step, NaN where it is unknown; by the definition that the summary's MFU has.

    An MFU that was counted from the model's shape is proportional to samples per second.
    """
    unknown: Floats = np.full(len(steps), np.nan)
    if summary.efficiency.mfu_source == "log" and summary.efficiency.peak_flops_per_s:
        return np.asarray(steps.flops_per_s_per_gpu / summary.efficiency.peak_flops_per_s)
    if summary.efficiency.mfu_ratio is None or not summary.efficiency.samples_per_s:
        return unknown
    with np.errstate(divide="ignore", invalid="ignore"):
        computed = steps.global_batch_size / steps.step_time_s
    samples_per_s = np.where(np.isfinite(computed), computed, steps.samples_per_s)
    return np.asarray(samples_per_s * (summary.efficiency.mfu_ratio / summary.efficiency.samples_per_s))


def _groups(values: Floats, size: int) -> Floats:
    """(groups, size): neighbors side by side; the last group is filled up with NaN."""
    groups = np.full((-(-len(values) // size), size), np.nan)
    groups.ravel()[: len(values)] = values
    groups[~np.isfinite(groups)] = np.nan
    return groups
