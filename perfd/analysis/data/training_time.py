"""When a job trains that prints no steps: by the activity of its GPUs, without its start and its pauses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfd.analysis.data.job_data import Bools, Floats, GpuTable, Ints, JobData
from perfd.analysis.data.robust_stats import mean
from perfd.model import GpuColumn

_ACTIVITY = (GpuColumn.GRAPHICS_ACTIVE, GpuColumn.BUSY, GpuColumn.SM_ACTIVE, GpuColumn.TENSOR_ACTIVE)
_LEVEL_PERCENTILE = 90
"""Of the activity: its level while the job trains, without pauses and without a single peak. Chosen."""
_ACTIVE_PART = 0.25
"""Of that level: what a job does while it starts, or writes a checkpoint, is far less than when it trains."""
_LEAST_LEVEL = 0.20
"""GPUs that never do more may well load a model, or compile."""
_PAUSE_S = 5.0
"""A shorter gap is part of the training: it may well be what limits the job."""
_RHYTHM = 3
"""So many gaps of about one length, or more, are how the job works, and no pauses."""
_FEWEST_SAMPLES = 10
"""In all: what follows of fewer may still be the warm-up."""
_MOST_GPUS = 64
"""Ranks train together: so many, evenly chosen, show when."""


def shows_earlier_start(job: JobData) -> bool:
    """Whether most processes of a running job began after its newest step: it has made none since.

    What is held of its operations, hosts and GPUs is then of two runs, or of its start. A node whose clock is
    ahead shows that of its own ranks only.
    """
    if not len(job.steps) or job.ended_unix_s is not None:
        return False
    placed = (one.started_unix_ns for ranks in job.placements.values() for one in ranks)
    newest_unix_s = float(job.steps.time_unix_s[-1])
    later = [began_ns / 1e9 > newest_unix_s for began_ns in placed if began_ns is not None]
    return 2 * sum(later) > len(later)


def training_samples(gpu: GpuTable) -> Ints:
    """The rows of `gpu` in which the job trains, in order; none where they are too few.

    The first and the last row of each stretch may be of something else in part, so they do not count.
    """
    active = _active(gpu.metrics)
    if active is None:
        return np.empty(0, dtype=np.int64)
    inside = np.zeros(len(active), dtype=np.bool_)
    begins, ends = _stretches(active)
    pauses = _pauses(gpu.time_unix_s, begins, ends)
    first = begins[np.concatenate(([True], pauses))] if len(begins) else begins
    last = ends[np.concatenate((pauses, [True]))] if len(ends) else ends
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        inside[begin + 1 : end] = True
    rows = np.flatnonzero(inside)
    return rows if len(rows) >= _FEWEST_SAMPLES else np.empty(0, dtype=np.int64)


def _active(metrics: Mapping[GpuColumn, NDArray[np.floating]]) -> Bools | None:
    """At which instants the GPUs are about as active as the job makes them; None if unknown."""
    columns = [metrics[name] for name in _ACTIVITY if name in metrics and metrics[name].size]
    if not columns:
        return None
    every = max(1, columns[0].shape[1] // _MOST_GPUS)
    seen = [mean(values[:, ::every], axis=1) for values in columns]
    # Some are read seldom: what any of them shows counts.
    level: Floats = np.nan_to_num(np.fmax.reduce(seen), nan=0.0)
    usual = float(np.percentile(level, _LEVEL_PERCENTILE))
    return level >= max(_ACTIVE_PART * usual, _LEAST_LEVEL)


def _stretches(active: Bools) -> tuple[Ints, Ints]:
    """The first and the last row of each."""
    edges = np.diff(np.concatenate(([0], active.astype(np.int8), [0])))
    return np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1


def _pauses(times: Floats, begins: Ints, ends: Ints) -> Bools:
    """Which gaps between stretches are pauses: long ones that do not come again and again."""
    gaps_s = times[begins[1:]] - times[ends[:-1]]
    alike = (gaps_s[:, None] >= gaps_s[None, :] / 2) & (gaps_s[:, None] <= 2 * gaps_s[None, :])
    return np.asarray((gaps_s > _PAUSE_S) & (alike.sum(axis=0) < _RHYTHM))
