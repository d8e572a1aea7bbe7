"""How step time and MFU of a job went, in few enough points to draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from perfd.analysis.data.job_data import Floats, StepTable
from perfd.analysis.diagnosis import JobSummary
from perfd.analysis.steps import steady_rows
from perfd.model import Event


def progress_columns(
    steps: StepTable, events: Sequence[Event], summary: JobSummary, points: int
) -> dict[str, list[Any]]:
    """The columns of schema perfd.series/1, at most `points` long.

    A point stands for as many neighboring steps as that takes: times and MFU are their
    medians, `step_time_max_s` the slowest, `step` and `time_unix_s` those of the last.
    """
    count = len(steps)
    size = max(1, -(-count // points))
    starts = np.arange(0, count, size)
    last = np.minimum(starts + size, count) - 1
    steady = np.zeros(count, dtype=bool)
    steady[steady_rows(steps, events).rows] = True
    return {
        "step": steps.step[last].tolist(),
        "time_unix_s": steps.time_unix_s[last].tolist(),
        "step_time_s": _each(np.nanmedian, steps.step_time_s, starts, last),
        "step_time_max_s": _each(np.nanmax, steps.step_time_s, starts, last),
        "mfu_ratio": _each(np.nanmedian, _mfu(steps, summary), starts, last),
        "steady": [bool(steady[a : b + 1].any()) for a, b in zip(starts, last, strict=True)],
    }


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


def _each(reduce: Any, values: Floats, starts: Any, last: Any) -> list[float]:  # noqa: ANN401  (numpy's functions)
    """A statistic of each group of neighbors, NaN where no value of it is known."""
    groups = [values[a : b + 1] for a, b in zip(starts, last, strict=True)]
    return [float(reduce(group)) if np.isfinite(group).any() else np.nan for group in groups]
