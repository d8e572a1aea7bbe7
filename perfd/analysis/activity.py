"""What the GPUs did during steady steps, by NVML's samples: one value for each step and GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perfd.analysis.robust import mean, median
from perfd.analysis.tables import Floats, GpuKey, GpuTable, Ints, StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuActivity:
    """Means over each steady step: one (k, g) array per metric, k steps that have samples by g GPUs."""

    gpus: Sequence[GpuKey]
    metrics: Mapping[str, NDArray[np.floating]]
    samples: Ints
    """Rows of the `GpuTable` that went into them."""
    source: str | None
    """`steady steps`, or `all samples` when no log says when steps were; None without samples."""

    def of_gpus(self, name: str) -> Floats:
        """One metric, the median over steps, for each GPU; NaN where it is unknown."""
        values = self.metrics.get(name)
        if values is None or not len(values):
            return np.full(len(self.gpus), np.nan)
        return np.asarray(median(values, axis=0), dtype=np.float64)


METRICS = (
    "sm_active_ratio",
    "tensor_active_ratio",
    "dram_active_ratio",
    "graphics_active_ratio",
    "busy_ratio",
    "power_w",
    "sm_clock_hz",
)


def gpu_activity(gpu: GpuTable, steps: StepTable, rows: Ints) -> GpuActivity:
    """Average the samples that fall into each steady step.

    GPM activities are means since the sample before, so a mean of samples is the
    mean over time. When steps are shorter than the sampling interval, a step
    has one sample at most and the median over steps is one over samples. When the
    log names no steps at all, each sample stands for itself.
    """
    present = {name: gpu.metrics[name] for name in METRICS if name in gpu.metrics}
    if not len(gpu.time_unix_s) or not present:
        return GpuActivity(gpus=gpu.gpus, metrics={}, samples=np.empty(0, dtype=np.int64), source=None)
    if not len(steps):
        everything = np.arange(len(gpu.time_unix_s))
        return GpuActivity(gpus=gpu.gpus, metrics=present, samples=everything, source="all samples")
    samples, groups = _samples_in_steps(gpu.time_unix_s, steps, rows)
    if not len(samples):
        return GpuActivity(gpus=gpu.gpus, metrics={}, samples=samples, source=None)
    per_step = {name: _group_means(values[samples], groups) for name, values in present.items()}
    return GpuActivity(gpus=gpu.gpus, metrics=per_step, samples=samples, source="steady steps")


def _samples_in_steps(times: Floats, steps: StepTable, rows: Ints) -> tuple[Ints, Ints]:
    """The samples that lie in a steady step, and where in them each step begins."""
    ends = steps.time_unix_s[rows]
    starts = ends - steps.step_time_s[rows] * steps.steps_covered[rows]
    timed = np.isfinite(starts)
    ends, starts = ends[timed], starts[timed]
    order = np.argsort(ends, kind="stable")
    ends, starts = ends[order], starts[order]
    if not len(ends):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    step = np.searchsorted(ends, times, side="left")
    inside = (step < len(ends)) & (times > starts[np.minimum(step, len(ends) - 1)])
    samples = np.flatnonzero(inside)
    _, groups = np.unique(step[samples], return_index=True)
    return samples, groups


def _group_means(values: NDArray[np.floating], groups: Ints) -> NDArray[np.floating]:
    if len(groups) == len(values):
        return values
    if not np.isnan(values).any():
        counts = np.diff(np.append(groups, len(values)))
        return np.asarray(np.add.reduceat(values, groups, axis=0) / counts[:, None])
    bounds = np.append(groups, len(values))
    return np.stack([mean(values[a:b], axis=0) for a, b in pairwise(bounds)])
