"""GPUs that became less active, by NVML's samples, which show it before a step that took longer ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from perfd.analysis.data.job_data import Floats, GpuTable, Ints, JobData, StepTable
from perfd.analysis.data.robust_stats import median
from perfd.analysis.steps.longer_steps import lines_since
from perfd.model import GpuColumn
from perfd.thresholds import THRESHOLDS

_BEFORE = 8
"""Samples before a change, whose median is what was usual. Chosen."""
_FEWEST_UNSEEN = 3
"""Samples since a change that no step covers yet, each a mean over a second; all GPUs must agree."""
_FEWEST_USUAL = 2
"""Samples before a change to a time in which all GPUs idle together, as they did not before. Chosen."""
_FALLS = 0.2
"""By which activity then falls at least. Chosen."""
_IDLE, _NEW = 0.12, 2.0
"""Of that time, that all GPUs run no kernel at least, and by so many times what they did before. Chosen."""
_IDLE_PART = 1 - THRESHOLDS.late_hosts_idle_ratio
"""Of what activity falls by, that GPUs run no kernel at least: in the rest they wait for each other."""
_USUALLY = 1 / 3
"""Of the samples before those: as active as GPUs were in so many is not a fall. They are as before a fault
that ended, in which they waited for each other. Chosen: more than an earlier fault of 12 s in 40 s."""
_MOST_ROWS, _LONGER = 6, 1.08
"""Rows of the time since that show a change by themselves, and by how much fewer have to be longer."""
_NEWEST_STEP_S = 1.0
"""Samples are means over a second, which may begin before a step's end."""
_TRAINING_RATIO = 0.25
"""Of the most active sample: up to this, the job does not train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSince:
    """GPUs of all ranks that became idle after the newest step whose time is known."""

    active_ratios: tuple[float, float]
    """How active the multiprocessors of the most active one were before, and since."""
    idle_ratio: float
    """The share of time since then in which GPUs run no kernel, the least of all."""
    lasts_s: float

    @property
    def gain_ratio(self) -> float:
        """The share of a step that the job would gain if it were as active as before."""
        before, now = self.active_ratios
        return 1 - now / before


class Fall(NamedTuple):
    """When the GPU that is most active at each time became less active."""

    before_ratio: float
    """How active its multiprocessors were before, the median, and since."""
    now_ratio: float
    since: Ints
    """The samples since then: rows of the `GpuTable`."""

    @property
    def ratio(self) -> float:
        """By what part activity fell, 0 to 1."""
        return 1 - self.now_ratio / self.before_ratio


def idle_since(job: JobData, kernels: GpuColumn) -> IdleSince | None:
    """Whether all GPUs run kernels for less of the time than before, in samples that no step covers yet.

    Where one rank is late, the GPUs of the others run a kernel that waits for it. `kernels` is the column
    that counts any kernel.
    """
    gpu, steps = job.gpu, job.steps
    running = gpu.metrics.get(kernels)
    logged = job.description is not None and bool(job.description.framework)
    if running is None or (logged and not len(steps)):
        # Before the first step of a job that prints them, its GPUs may do anything.
        return None
    fell = _fell_idle(gpu, running)
    if fell is None and job.launches is None:
        # Where they are seen, threads of hosts show more of it in a moment.
        fell = _fell_lately(gpu, running)
    if fell is None or _is_usual(gpu, fell):
        return None
    since = fell.since
    begin_s, end_s = float(gpu.time_unix_s[since[0] - 1]), float(gpu.time_unix_s[since[-1]])
    # By another clock, what is newer is not known.
    if end_s > job.now_unix_s + _NEWEST_STEP_S or not _unseen_by_steps(job, begin_s, gpu.time_unix_s[since]):
        return None
    return IdleSince(
        active_ratios=(fell.before_ratio, fell.now_ratio),
        idle_ratio=float((1 - running[since].mean(axis=0)).min()),
        lasts_s=end_s - begin_s,
    )


def _unseen_by_steps(job: JobData, begin_s: float, since_unix_s: Floats) -> bool:
    """Whether no step of that time is known, or only rows that mix it with the time before, or are longer."""
    steps = job.steps
    if not len(steps):
        return True
    if job.launches is None and steps.steps_covered[-1] > 1:
        return _steps_may_be_longer(steps, since_unix_s)
    mixed_s = float(steps.step_time_s[-1] * steps.steps_covered[-1]) if steps.steps_covered[-1] > 1 else 0.0
    return begin_s >= float(steps.time_unix_s[-1]) - max(mixed_s, _NEWEST_STEP_S)


def _steps_may_be_longer(steps: StepTable, since_unix_s: Floats) -> bool:
    """Whether rows of several steps were seen before these samples, and any since the first are longer.

    One that began before may be a mean of what was before the change and since.
    """
    times_s, ends_s = steps.step_time_s, steps.time_unix_s
    starts_s = ends_s - times_s * steps.steps_covered
    since, earlier = starts_s >= since_unix_s[0], ends_s <= since_unix_s[0]
    if not (starts_s < since_unix_s[0]).any() or since.sum() >= _MOST_ROWS:
        return False
    if not since.any():
        return True
    return bool(
        earlier.any() and np.median(times_s[since]) >= _LONGER * np.median(times_s[earlier][-_BEFORE:])
    )


def _fell_idle(gpu: GpuTable, running: NDArray[np.float32]) -> Fall | None:
    """As `activity_fell`, where each GPU runs no kernel for a good part of what activity fell by."""
    fell = activity_fell(gpu, _FEWEST_UNSEEN)
    if fell is None:
        return None
    return fell if (_idle_more(running, fell.since, _BEFORE) >= _IDLE_PART * fell.ratio).all() else None


def _idle_more(running: NDArray[np.float32], since: Ints, samples_before: int) -> Floats:
    """(g,): by how much more of the time than before each GPU runs no kernel."""
    earlier = np.arange(max(0, since[0] - samples_before), since[0])
    return np.asarray(median(running[earlier], axis=0) - running[since].mean(axis=0))


def _fell_lately(gpu: GpuTable, running: NDArray[np.float32]) -> Fall | None:
    """As `activity_fell`, where few samples before it are as usual: after a start, or after another fault.

    Then all GPUs must idle together, as they never did since the job began to train.
    """
    active = gpu.metrics.get(GpuColumn.SM_ACTIVE)
    if active is None or not active.shape[1]:
        return None
    level = active.max(axis=1).astype(np.float64)
    seen = np.flatnonzero(np.isfinite(level) & np.isfinite(running).all(axis=1))
    trains = np.flatnonzero(level[seen] > _TRAINING_RATIO * level[seen].max(initial=0.0))
    rows = seen[trains[0] :] if len(trains) else seen[:0]
    for newest in range(_FEWEST_UNSEEN, min(_BEFORE, len(rows) - _FEWEST_USUAL) + 1):
        since, earlier = rows[-newest:], rows[:-newest]
        before, now = float(np.median(level[earlier[-_FEWEST_UNSEEN:]])), float(np.median(level[since]))
        middle = (before + now) / 2
        apart = level[since].max() < middle < level[earlier[-_FEWEST_USUAL:]].min()
        if not apart or now > (1 - _FALLS) * before or now <= _TRAINING_RATIO * before:
            continue
        together = _idle_together(running[since], newest)[0]
        # The sample before may hold some of both.
        ever = _idle_together(running[earlier[:-1]], newest).max(initial=0.0)
        idle = float(_idle_more(running, since, _FEWEST_UNSEEN).mean())
        fell = Fall(before, now, since)
        if together >= max(_IDLE, _NEW * ever) and idle >= _IDLE_PART * fell.ratio:
            return fell
    return None


def _is_usual(gpu: GpuTable, fell: Fall) -> bool:
    """Whether the job often trained with as little activity before what was usual just before the change."""
    level = gpu.metrics[GpuColumn.SM_ACTIVE].max(axis=1).astype(np.float64)
    earlier = level[: max(0, fell.since[0] - _BEFORE)]
    earlier = earlier[earlier > _TRAINING_RATIO * np.nanmax(level)]
    return len(earlier) >= _BEFORE and fell.now_ratio > (1 - _FALLS) * float(np.quantile(earlier, _USUALLY))


def _idle_together(running: NDArray[np.float32], length: int) -> Floats:
    """Of each stretch of so many samples, for what share of the time the GPU that idles least idles."""
    if len(running) < length:
        return np.empty(0)
    return np.asarray(1 - sliding_window_view(running, length, axis=0).mean(axis=2).max(axis=1))


def activity_fell(gpu: GpuTable, fewest_since: int, *, before: int = _BEFORE) -> Fall | None:
    """When the most active GPU became less active than in so many samples before.

    None if it did not, or for fewer than `fewest_since` samples.
    """
    active = gpu.metrics.get(GpuColumn.SM_ACTIVE)
    if active is None or not active.shape[1]:
        return None
    level = active.max(axis=1).astype(np.float64)
    seen = np.flatnonzero(np.isfinite(level))
    training = level[seen] > _TRAINING_RATIO * (level[seen].max() if len(seen) else np.nan)
    # Training pauses for a checkpoint, for example; what came before that does not compare.
    pauses = np.flatnonzero(~training)
    rows = seen[pauses[-1] + 1 :] if len(pauses) else seen
    since = lines_since(1 / level[rows], before=before, fewest_since=fewest_since)
    if since is None or since >= len(rows):
        return None
    change = len(rows) - since
    usual, now = (float(np.median(part)) for part in (level[rows[:change][-before:]], level[rows[change:]]))
    return Fall(usual, now, np.asarray(rows[change:]))
