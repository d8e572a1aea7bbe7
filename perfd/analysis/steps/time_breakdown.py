"""Where the rest of a step goes: data, optimizer, compute, what no timer holds; memory and goodput."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Floats, JobData
from perfd.analysis.data.robust_stats import (
    known,
    median,
    median_of,
    near_sigma_of,
    percentile_of,
    sigma_of,
)
from perfd.analysis.flops.gpu_peak_lookup import PeakTable, find_gpu
from perfd.analysis.steps.phase_timers import BACKWARD, DATA, FORWARD, OPTIMIZER, WINDOW, Timers, share
from perfd.analysis.steps.steady_steps import SteadySteps
from perfd.model import GpuColumn, MemoryReport, ParallelLayout
from perfd.thresholds import THRESHOLDS

_NEAR = 3
"""Steps so far apart are of one pace, unless it changes between them. Chosen."""
_FEWEST_SCATTERED = 10
"""Lines from which their scatter is known: of three it may be anything. Chosen."""
_SYNCHRONISED = frozenset({"batch-generator", "data-iterator"})
"""Megatron's: the batch is copied behind what the GPU still has to do, and timers synchronize the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoading:
    """The input pipeline's part of the step."""

    share_ratio: float | None = None
    """The slowest rank's: the others wait for it."""
    least_ratio: float | None = None
    """The fastest rank's: far below the share when one rank's input is slow and not all."""
    slow_rank: int | None = None
    """The rank whose input is slow while that of most is not, where timers are by rank."""
    reading_tensor_rank: int | None = None
    """The position in tensor groups whose ranks all load slowly while the others do not: they read for their
    groups, by design, and none of them is slower than the other ranks of its role."""
    source: str | None = None
    waits_for_gpu: bool = False
    """Whether that timer waits for what the GPU still has to do, so that a slow GPU looks like slow input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """The optimizer's part of the step, with the collectives that run inside it."""

    share_ratio: float | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """How full the fullest GPU was."""

    max_used_ratio: float | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds a step, over steady steps; jitter over the outliers too, as they are what it is about."""

    median: float | None = None
    p95: float | None = None
    jitter_ratio: float | None = None
    """Robust standard deviation of the unmarked steps by their median; None of fewer than ten lines, and
    where these may be no steps."""
    outlier_ratio: float | None = None
    """Outliers among the unmarked steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBreakdown:
    """Parts of the step by timers of the log; None where a timer is missing."""

    forward_ratio: float | None = None
    """The slowest rank's forward compute, with the collectives and the input that it holds.

    Where phases hold waiting and are known by rank, both are of the rank with the longest sum: what is
    waited in the one is another rank's work in the other.
    """
    backward_ratio: float | None = None
    spread_ratio: float | None = None
    """Compute of the slowest rank less that of the fastest, by the step."""
    unattributed_ratio: float | None = None
    """Outside all timers of level 1: waiting at barriers, logging and other host work."""


def data_loading(timers: Timers, step_time_s: Floats, parallel: ParallelLayout | None = None) -> DataLoading:
    """The data share of steady steps; it is part of the forward pass in Megatron's timers."""
    name = timers.first(DATA)
    if name is None:
        return DataLoading()
    by_rank_s = timers.by_rank_s(name)
    reader = _reading_tensor_rank(by_rank_s, step_time_s, parallel)
    return DataLoading(
        share_ratio=share(timers.max_s(name), step_time_s),
        least_ratio=share(timers.min_s(name), step_time_s),
        slow_rank=None if reader is not None else _slow_rank(by_rank_s, step_time_s),
        reading_tensor_rank=reader,
        source=f"timers: {name}",
        waits_for_gpu=name in _SYNCHRONISED,
    )


def _reading_tensor_rank(
    by_rank_s: Floats | None, step_time_s: Floats, parallel: ParallelLayout | None
) -> int | None:
    """The tensor position of all ranks that load slowly, if every rank of their role does."""
    if by_rank_s is None or parallel is None or (parallel.tp or 1) < 2:
        return None
    shares = median(by_rank_s / step_time_s[:, None], axis=0)
    ranks, tensor, stages = np.arange(len(shares)), parallel.tp or 1, parallel.pp or 1
    if not np.isfinite(shares).all() or len(shares) % (tensor * stages):
        return None
    slow = shares - shares.min() >= max(
        THRESHOLDS.data_loading_spread_ratio, (shares.max() - shares.min()) / 2
    )
    places = np.unique(ranks[slow] % tensor)
    # Ranks of one role are those of one stage and tensor position.
    role = ranks // (len(shares) // stages) * tensor + ranks % tensor
    whole = slow[np.isin(role, role[slow])].all()
    return int(places[0]) if len(places) == 1 and whole else None


def _slow_rank(by_rank_s: Floats | None, step_time_s: Floats) -> int | None:
    """The one rank that loads for 5% of a step longer than the median rank, if the next one does not."""
    if by_rank_s is None or by_rank_s.shape[1] < 2:
        return None
    shares = median(by_rank_s / step_time_s[:, None], axis=0)
    if not np.isfinite(shares).all():
        return None
    slowest, next_one = np.argsort(-shares, kind="stable")[:2]
    # Of two ranks, the other one is what it is compared with.
    typical = float(np.median(np.delete(shares, slowest)))
    alone = (
        shares[slowest] - typical >= THRESHOLDS.data_loading_spread_ratio
        and shares[next_one] - typical < THRESHOLDS.data_loading_spread_ratio / 2
    )
    return int(slowest) if alone else None


def optimizer(timers: Timers, step_time_s: Floats) -> Optimizer:
    """The optimizer share of steady steps, the slowest rank's."""
    name = timers.first(OPTIMIZER)
    if name is None:
        return Optimizer()
    return Optimizer(share_ratio=share(timers.max_s(name), step_time_s), source=f"timers: {name}")


def breakdown(timers: Timers, step_time_s: Floats) -> StepBreakdown:
    """Compute, its spread over ranks, and what no timer holds."""
    forward_name, backward_name = timers.first(FORWARD), timers.first(BACKWARD)
    forward, backward = _of_one_rank(timers) or (
        timers.max_s(forward_name) if forward_name else None,
        timers.max_s(backward_name) if backward_name else None,
    )
    window = timers.max_s(WINDOW)
    update = timers.max_s("optimizer")
    outside = None if window is None or update is None else step_time_s - window - update
    return StepBreakdown(
        forward_ratio=share(forward, step_time_s),
        backward_ratio=share(backward, step_time_s),
        spread_ratio=share(_spread(timers, forward_name, backward_name), step_time_s),
        unattributed_ratio=share(outside, step_time_s),
    )


def _of_one_rank(timers: Timers) -> tuple[Floats, Floats] | None:
    """Forward and backward of the rank that is longest in sum, if they hold waiting and are known."""
    computing = timers.computing_by_rank_s() if timers.hold_waiting else None
    if computing is None:
        return None
    forward, backward = computing
    both = median(forward + backward, axis=0)
    if not np.isfinite(both).any():
        return None
    slowest = int(np.nanargmax(both))
    return forward[:, slowest], backward[:, slowest]


def _spread(timers: Timers, *names: str | None) -> Floats | None:
    total: Floats | None = None
    for name in names:
        if name is None:
            return None
        most, least = timers.max_s(name), timers.min_s(name)
        if most is None or least is None:
            return None
        total = most - least if total is None else total + most - least
    return total


def step_time(times_s: Floats, steady: SteadySteps) -> StepTime:
    """Median, 95th percentile and scatter of the step times of a job."""
    chosen, unmarked = times_s[steady.rows], times_s[steady.unmarked]
    middle, sigma = median_of(chosen), _jitter_s(unmarked)
    outliers = len(unmarked) - len(chosen)
    return StepTime(
        median=middle,
        p95=percentile_of(chosen, 95),
        jitter_ratio=sigma / middle if sigma is not None and middle else None,
        outlier_ratio=outliers / len(unmarked) if len(unmarked) else None,
    )


def _jitter_s(times_s: Floats) -> float | None:
    """Scatter around the pace: steps before and after it changed are steady, and differ."""
    sigma = sigma_of(times_s)
    if sigma is None or len(times_s) < _FEWEST_SCATTERED:
        return None
    return min(sigma, near_sigma_of(times_s, _NEAR))


def memory(job: JobData, peaks: PeakTable) -> Memory:
    """The fullest GPU over the whole run by NVML, else by the newest allocator reports of the ranks."""
    used = job.gpu.metrics.get(GpuColumn.MEMORY_USED)
    if used is not None and used.size and np.isfinite(used).any():
        fullest = np.fmax.reduce(used, axis=0).astype(float)
        ratio = np.fmax.reduce(fullest / _capacities(job, peaks), initial=np.nan)
        if np.isfinite(ratio):
            # What a table says may be less than there is.
            return Memory(max_used_ratio=min(1.0, float(ratio)), source="nvml")
    sizes = set(_sizes(job, peaks).values())
    reports = [value for report in job.memory if (value := _reserved(report)) is not None]
    # Reports do not say on which GPU a rank is, so the GPUs must be alike.
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None or not reports:
        return Memory()
    ratio = known(min(1.0, max(reports) / size))
    return Memory(max_used_ratio=ratio, source="allocator, of its rank alone")


def goodput_ratio(job: JobData, steady: SteadySteps, median_s: float | None) -> float | None:
    """Time that the finished steps need at the steady pace, by the wall time since the job's start.

    Restarts (steps done twice count once), checkpoints, evaluation, warm-up and
    slow steps are what is missing to 1. None when the start or the pace is unknown.
    """
    steps = job.steps
    if median_s is None or not len(steady.rows):
        return None
    _, newest = np.unique(steps.step, return_index=True)
    productive = float(steps.steps_covered[newest].sum()) * median_s
    start = job.started_unix_s
    if start is None:
        start = float(steps.time_unix_s[0] - steps.step_time_s[0] * steps.steps_covered[0])
    end = job.ended_unix_s if job.ended_unix_s is not None else job.now_unix_s
    wall = end - start
    return known(min(1.0, productive / wall)) if wall > 0 else None


def _capacities(job: JobData, peaks: PeakTable) -> Floats:
    """Memory of each GPU of the table in bytes, NaN where it is unknown."""
    total = job.gpu.metrics.get(GpuColumn.MEMORY_TOTAL)
    if total is not None and total.size:
        by_nvml: Floats = np.fmax.reduce(total, axis=0).astype(float)
    else:
        by_nvml = np.full(len(job.gpu.gpus), np.nan)
    by_nvml[by_nvml <= 0] = np.nan
    if np.isfinite(by_nvml).all():
        return by_nvml
    sizes = _sizes(job, peaks)
    stated = (sizes.get((key.node, key.gpu)) for key in job.gpu.gpus)
    by_info = np.array([np.nan if size is None else size for size in stated])
    return np.asarray(np.where(np.isfinite(by_nvml), by_nvml, by_info))


def _sizes(job: JobData, peaks: PeakTable) -> dict[tuple[str, str], float | None]:
    """Memory of each GPU by node and index: as NVML says, else as the table does; a slice's is unknown."""
    infos = [(node, info) for node, found in job.gpu_infos.items() for info in found]
    rows = {name: find_gpu(peaks, name) for name in {info.name for _, info in infos}}
    sizes: dict[tuple[str, str], float | None] = {}
    for node, info in infos:
        row = None if info.mig else rows[info.name]
        # A driver that cannot say how much memory there is may say zero.
        sizes[node, str(info.index)] = info.memory_bytes or (row.memory_bytes if row else None)
    return sizes


def _reserved(report: MemoryReport) -> float | None:
    values = (report.device_used_bytes, report.max_reserved_bytes, report.reserved_bytes)
    return next((value for value in values if value is not None), report.max_allocated_bytes)
