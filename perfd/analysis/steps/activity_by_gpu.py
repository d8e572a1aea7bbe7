"""What the GPUs did, by NVML's samples: a value for each steady step and GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perfd.analysis.data.job_data import Floats, GpuKey, GpuTable, Ints, StepTable
from perfd.analysis.data.robust_stats import mean, median
from perfd.analysis.data.training_time import training_samples
from perfd.analysis.steps.longer_steps import lines_since
from perfd.analysis.steps.steady_steps import lines_are_means
from perfd.model import GpuColumn

STEADY_STEPS, TRAINING_TIME = "steady steps", "training time"
"""What samples are of."""
_FEWEST_SAMPLES = 5
"""Of each GPU, before a median says what is usual."""
_LEAST_PART = 0.25
"""Of the samples of NVML's utilization, that GPM must have to be taken in its place. Chosen."""
_MOST_STEPS = 64
"""More steps do not make a median over steps better, and a job may have thousands of GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuActivity:
    """Means over each steady step: one (k, g) array per metric, k steps that have samples by g GPUs."""

    gpus: Sequence[GpuKey]
    metrics: Mapping[GpuColumn, NDArray[np.floating]]
    medians: Mapping[GpuColumn, Floats]
    """Of each metric over steps, by GPU."""
    samples: Ints
    """Rows of the `GpuTable` that went into them."""
    source: str | None
    """`steady steps`, or `training time` when no log says when steps were; None without samples of it."""

    def of_gpus(self, name: GpuColumn) -> Floats:
        """One metric, the median over steps, for each GPU; NaN where it is unknown."""
        return self.medians.get(name, np.full(len(self.gpus), np.nan))

    def lately(self, name: GpuColumn) -> Floats:
        """The same over the newest of these steps, which show a fault before the median of all does."""
        values = self.metrics.get(name)
        if values is None:
            return self.of_gpus(name)
        return np.asarray(median(values[-newest_rows(len(values)) :], axis=0), dtype=np.float64)

    @property
    def kernel_metric(self) -> GpuColumn:
        """The metric that shows how long any kernel ran: GPM's, else NVML's coarser utilization.

        GPM's is read at a slow pace because it is dear, so that of a short job it may have few samples,
        and these may be of its start. Where hosts are late in turn, a few of them show one GPU alone.
        """
        graphics, plain = self.metrics.get(GpuColumn.GRAPHICS_ACTIVE), self.metrics.get(GpuColumn.BUSY)
        if graphics is None or plain is None:
            return GpuColumn.BUSY if graphics is None else GpuColumn.GRAPHICS_ACTIVE
        enough = np.isfinite(graphics).sum() >= _LEAST_PART * np.isfinite(plain).sum()
        return GpuColumn.GRAPHICS_ACTIVE if enough and self.usual(graphics) else GpuColumn.BUSY

    @property
    def when(self) -> str:
        """Which time the samples of the GPUs' activity are of, in words."""
        return "the time in which the job trains" if self.source == TRAINING_TIME else "steady steps"

    def usual(self, values: NDArray[np.floating] | None) -> bool:
        """Whether there are enough samples of each GPU for their median to say what is usual."""
        return values is not None and bool(np.isfinite(values).sum() >= _FEWEST_SAMPLES * values.shape[1])


def newest_rows(rows: int, fewest: int = _FEWEST_SAMPLES) -> int:
    """How many of the newest steps with samples count as current: a quarter, or the fewest to be trusted."""
    return max(fewest, rows // 4)


METRICS = (
    GpuColumn.SM_ACTIVE,
    GpuColumn.TENSOR_ACTIVE,
    GpuColumn.DRAM_ACTIVE,
    GpuColumn.GRAPHICS_ACTIVE,
    GpuColumn.BUSY,
    GpuColumn.POWER,
    GpuColumn.SM_CLOCK,
    GpuColumn.PCIE_RX,
    GpuColumn.PCIE_TX,
)


def gpu_activity(gpu: GpuTable, steps: StepTable, rows: Ints, *, few_samples: bool = False) -> GpuActivity:
    """Average the samples that fall into each steady step, in at most 64 steps spread over all.

    GPM activities are means since the sample before, so a mean of samples is the
    mean over time. When steps are shorter than the sampling interval, a step
    has one sample at most and the median over steps is one over samples. When the
    log has no times of steps, each sample in which the job trains stands for itself.

    Each sample also stands for itself where lines are means over several steps, and with `few_samples`.
    Then NVML's share of time with a kernel is their mean: it is of a moment, so that most of few may say
    that a GPU never idles.
    """
    timed = bool(np.isfinite(steps.step_time_s).any())
    if timed:
        samples, groups = _samples_in_steps(gpu.time_unix_s, steps, rows)
        if few_samples or lines_are_means(steps, rows):
            samples = _spread(samples)
            groups = np.arange(len(samples))
    else:
        samples = _spread(_since_change(gpu, training_samples(gpu)))
        groups = np.arange(len(samples))
    present = {name: gpu.metrics[name][samples] for name in METRICS if name in gpu.metrics}
    if not len(samples) or not present:
        return GpuActivity(gpus=gpu.gpus, metrics={}, medians={}, samples=samples, source=None)
    per_step = {name: _group_means(values, groups) for name, values in present.items()}
    return GpuActivity(
        gpus=gpu.gpus,
        metrics=per_step,
        medians={
            name: (mean if few_samples and name is GpuColumn.BUSY else median)(values, axis=0).astype(
                np.float64
            )
            for name, values in per_step.items()
        },
        samples=samples,
        source=STEADY_STEPS if timed else TRAINING_TIME,
    )


def _since_change(gpu: GpuTable, samples: Ints) -> Ints:
    """Of these samples, those since the most active GPU became more or less active; else all.

    Where nothing shows steps, activity shows that a job became faster or slower.
    """
    active = gpu.metrics.get(GpuColumn.SM_ACTIVE)
    if active is None or not active.shape[1]:
        return samples
    level = active[samples].max(axis=1).astype(np.float64)
    seen = np.flatnonzero(np.isfinite(level) & (level > 0))
    since = [lines_since(one) for one in (level[seen], 1 / level[seen])]
    changed = [one for one in since if one is not None]
    return samples[seen[-min(changed)] :] if changed else samples


def _samples_in_steps(times: Floats, steps: StepTable, rows: Ints) -> tuple[Ints, Ints]:
    """The samples inside a steady step, and where in them each step begins."""
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
    inside &= np.isin(step, _spread(np.unique(step[inside])))
    samples = np.flatnonzero(inside)
    _, groups = np.unique(step[samples], return_index=True)
    return samples, groups


def _spread(rows: Ints) -> Ints:
    """At most this many of them, evenly."""
    return rows[:: len(rows) // _MOST_STEPS + 1]


def _group_means(values: NDArray[np.floating], groups: Ints) -> NDArray[np.floating]:
    if len(groups) == len(values):
        return values
    if not np.isnan(values).any():
        counts = np.diff(np.append(groups, len(values)))
        return np.asarray(np.add.reduceat(values, groups, axis=0) / counts[:, None])
    bounds = np.append(groups, len(values))
    return np.stack([mean(values[a:b], axis=0) for a, b in pairwise(bounds)])
