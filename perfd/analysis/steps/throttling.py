"""GPUs that are held below their clock, and by what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Bools, Floats, GpuKey, Ints, JobData
from perfd.analysis.steps.activity_by_gpu import GpuActivity
from perfd.model import GpuColumn
from perfd.thresholds import THRESHOLDS

_HARD: Mapping[str, tuple[int, GpuColumn | None]] = {
    "hardware slowdown": (0x08, None),
    "software thermal limit": (0x20, GpuColumn.LIMITED_SW_THERMAL),
    "hardware thermal limit": (0x40, GpuColumn.LIMITED_HW_THERMAL),
    "power brake": (0x80, GpuColumn.LIMITED_HW_POWER_BRAKE),
}
"""Reasons that never belong to a healthy GPU: bits of NVML's `nvmlClocksEventReason`, and
the counter of each where NVML has one."""
_POWER_CAP: Mapping[str, tuple[int, GpuColumn | None]] = {"power cap": (0x04, GpuColumn.LIMITED_SW_POWER)}
"""Usual at full load; only a clock far below the maximum makes it worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldClock:
    """One GPU whose clock is held down during steady steps."""

    gpu: GpuKey
    reason: str
    time_ratio: float
    """Of the time, how long the reason held."""
    clock_ratio: float | None
    """Mean SM clock by its maximum."""


def held_clocks(job: JobData, activity: GpuActivity) -> tuple[HeldClock, ...]:
    """GPUs under a thermal or hardware limit, or far below their clock by the power cap; slowest first."""
    clock_ratios = _clock_ratios(job, activity)
    sampled = _sampled_masks(job, activity)
    held: list[HeldClock] = []
    for limits, most in (
        (_HARD, THRESHOLDS.throttling_clock_ratio),
        (_POWER_CAP, THRESHOLDS.power_cap_clock_ratio),
    ):
        for reason, (bit, counter) in limits.items():
            time_ratios = _time_ratios(job, activity, sampled, bit, counter)
            # An unknown clock does not rule out a hard limit, but shows nothing of a power cap. Nor do a few
            # samples: a cap first takes more of the clock than it needs to.
            usual = activity.usual(activity.metrics.get(GpuColumn.SM_CLOCK))
            slow = usual & (clock_ratios <= most) if limits is _POWER_CAP else ~(clock_ratios > most)
            found = np.flatnonzero((time_ratios >= THRESHOLDS.throttling_time_ratio) & slow)
            held += [_held(job, index, reason, time_ratios, clock_ratios) for index in found.tolist()]
    return tuple(sorted(held, key=lambda one: 1.0 if one.clock_ratio is None else one.clock_ratio))


def _held(job: JobData, index: int, reason: str, times: Floats, clocks: Floats) -> HeldClock:
    clock = float(clocks[index])
    return HeldClock(
        gpu=job.gpu.gpus[index],
        reason=reason,
        time_ratio=float(times[index]),
        clock_ratio=clock if np.isfinite(clock) else None,
    )


def _sampled_masks(job: JobData, activity: GpuActivity) -> tuple[Ints, Bools] | None:
    """Bits of the reasons in each sample of each GPU, and where they are known; None without a sample."""
    masks = job.gpu.metrics.get(GpuColumn.CLOCKS_EVENT_REASONS)
    if masks is None or not len(activity.samples):
        return None
    taken = masks[activity.samples]
    known = np.isfinite(taken)
    return np.where(known, taken, 0).astype(np.int64), known


def _time_ratios(
    job: JobData,
    activity: GpuActivity,
    sampled: tuple[Ints, Bools] | None,
    bit: int,
    counter: GpuColumn | None,
) -> Floats:
    """How long a reason held on each GPU: by NVML's counter where it has one, else by samples of the mask."""
    absent = np.full(len(job.gpu.gpus), np.nan)
    samples = activity.samples
    if not len(samples):
        return absent
    counted = None if counter is None else job.gpu.metrics.get(counter)
    if counted is not None and len(samples) > 1:
        first, last = samples[0], samples[-1]
        span = job.gpu.time_unix_s[last] - job.gpu.time_unix_s[first]
        by_counter = (counted[last].astype(np.float64) - counted[first]) / span
        if np.isfinite(by_counter).any():
            return np.asarray(by_counter)
    if sampled is None:
        return absent
    bits, known = sampled
    held = ((bits & bit) != 0) & known
    counts = known.sum(axis=0)
    return np.where(counts > 0, held.sum(axis=0) / np.maximum(counts, 1), np.nan)


def _clock_ratios(job: JobData, activity: GpuActivity) -> Floats:
    most: dict[tuple[str, str], float | None] = {
        (node, str(info.index)): info.max_sm_clock_hz
        for node, infos in job.gpu_infos.items()
        for info in infos
    }
    limits: Sequence[float | None] = [most.get((key.node, key.gpu)) for key in job.gpu.gpus]
    known = np.array([np.nan if limit is None else limit for limit in limits])
    return np.asarray(activity.of_gpus(GpuColumn.SM_CLOCK) / known)
