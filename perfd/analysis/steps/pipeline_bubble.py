"""The pipeline's stall: what theory expects, what timers show, and what unequal stages explain.

Definitions are those of docs/analysis-pipeline.md. A stall is time in which a stage
computes nothing while the schedule runs; theory calls the unavoidable part of
it the bubble (Narayanan et al. 2021, section 2.2).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Floats, Ints
from perfd.analysis.data.robust_stats import known, mean, median, median_of
from perfd.analysis.steps.phase_timers import BACKWARD, FINALISATION, FORWARD, WINDOW, Timers
from perfd.model import JobDescription, ParallelLayout

SOURCE_BY_RANK = "timers: by rank"
SOURCE_EXTREMES = "timers: minimum and maximum over ranks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of the pipeline, or one whose number is not in the log."""

    stage: int | None
    """None when only minima and maxima over ranks are known: they come without a rank."""
    stall_ratio: float | None
    compute_s: float | None
    imbalance_ratio: float | None = None
    """The part of the stall that equal stages would not have."""
    bound: str | None = None
    """`at_least` for the busiest stage and `at_most` for the idlest when only extremes are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The stall of the whole pipeline and of its stages; None where it is unknown or there is no pipeline."""

    bubble_theory_ratio: float | None = None
    """Of the schedule's time, for equal stages without communication; 0 without a pipeline."""
    stall_ratio: float | None = None
    """Mean over stages by rank; of extremes, the middle between the least and the most stalled."""
    stages: Sequence[Stage] = ()
    source: str | None = None
    imbalance_ratio: float | None = None
    """The part of the stall that is due to unequal stages."""
    structural_ratio: float | None = None
    """The rest: the schedule's own bubble and transfers between stages."""
    excess_ratio: float | None = None
    """The stall beyond theory; alerts belong on this, not on the stall."""
    window_excess_ratio: float | None = None
    """The schedule's time beyond what its unequal stages need without communication; 1F1B only."""
    window_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Busy:
    """Compute seconds of the stages in each step: least, mean and most over stages, and their sum."""

    least: Floats
    mean: Floats
    most: Floats


def bubble_theory_ratio(parallel: ParallelLayout) -> float | None:
    """The bubble's part of the schedule, (p - 1) / (v m + p - 1), or None when a size is unknown.

    v is 1 for GPipe and 1F1B, and the model chunks per stage when they are
    interleaved. Texts that quote (p - 1) / m mean the ratio to ideal time.
    """
    if parallel.pp == 1:
        return 0.0
    if not parallel.pp or not parallel.micro_batches:
        return None
    idle = parallel.pp - 1
    return idle / ((parallel.vp or 1) * parallel.micro_batches + idle)


def pipeline(
    timers: Timers, description: JobDescription | None, slow_ranks: Collection[int] = ()
) -> Pipeline:
    """Derive theory and the measured stall from level-2 timers of steady steps.

    `slow_ranks` do not stand for their stage: a slow machine is not an imbalance of the model.
    """
    if description is None:
        return Pipeline()
    parallel = description.parallel
    theory = bubble_theory_ratio(parallel)
    if not parallel.pp or parallel.pp == 1:
        return Pipeline(bubble_theory_ratio=theory)
    window = _window_s(timers, description)
    by_stage = _compute_by_stage(timers, parallel, slow_ranks)
    if window is not None and by_stage is not None:
        busy = _Busy(by_stage.min(axis=1), by_stage.mean(axis=1), by_stage.max(axis=1))
        stages = _numbered_stages(by_stage, window)
        return _measured(parallel, busy, window, stages=stages, source=SOURCE_BY_RANK)
    extremes = _compute_extremes(timers)
    if window is not None and extremes is not None:
        stages = _extreme_stages(extremes, window)
        return _measured(parallel, extremes, window, stages=stages, source=SOURCE_EXTREMES)
    return Pipeline(bubble_theory_ratio=theory)


def stage_of_ranks(ranks: Ints, parallel: ParallelLayout) -> Ints | None:
    """The pipeline stage of each rank in Megatron's order, where stages are the slowest dimension."""
    if not parallel.pp or not parallel.world_size or parallel.world_size % parallel.pp:
        return None
    return ranks // (parallel.world_size // parallel.pp)


def _measured(
    parallel: ParallelLayout, busy: _Busy, window: Floats, *, stages: Sequence[Stage], source: str
) -> Pipeline:
    theory = bubble_theory_ratio(parallel)
    stall = median_of(1 - busy.mean / window)
    imbalance = median_of((busy.most - busy.mean) / window)
    if stall is None:
        return Pipeline(bubble_theory_ratio=theory)
    return Pipeline(
        bubble_theory_ratio=theory,
        stall_ratio=stall,
        stages=stages,
        source=source,
        imbalance_ratio=imbalance,
        structural_ratio=None if imbalance is None else stall - imbalance,
        excess_ratio=None if theory is None else stall - theory,
        window_excess_ratio=_window_excess(busy, window, parallel),
        window_s=median_of(window),
    )


def _window_excess(busy: _Busy, window: Floats, parallel: ParallelLayout) -> float | None:
    """The window by what 1F1B needs for these stages, less 1.

    That is the sum of t_s and (m - 1) times the greatest, t_s being forward and backward of one micro-batch.
    Replayed on the public timelines of ByteDance-Seed/StragglerAnalysis it is within 0.1 to 2%.
    """
    micro_batches = parallel.micro_batches
    if not micro_batches or not parallel.pp or (parallel.vp or 1) > 1:
        return None
    # The sum over stages is p times their mean; timers hold all micro-batches of a step.
    needed = (parallel.pp * busy.mean + (micro_batches - 1) * busy.most) / micro_batches
    return median_of(window / needed - 1)


def _window_s(timers: Timers, description: JobDescription) -> Floats | None:
    """The schedule's time without the finalization of gradients, which newer versions time inside it."""
    window = timers.max_s(WINDOW)
    if window is None or not _holds_finalisation(description.framework_version):
        return window
    for name in FINALISATION:
        inside = timers.max_s(name)
        if inside is not None:
            # A row that is missing in one block is not known there, but it is small: keep the step.
            window = window - np.where(np.isfinite(inside), inside, median(inside))
    return window


def _holds_finalisation(version: str | None) -> bool:
    """Megatron core 0.7 moved gradient finalization into `forward-backward`; 2.x and 3.x came before core."""
    found = re.search(r"(\d+)\.(\d+)", version or "")
    return found is None or (0, 7) <= (int(found[1]), int(found[2])) < (2, 0)


def _compute_by_stage(timers: Timers, parallel: ParallelLayout, slow_ranks: Collection[int]) -> Floats | None:
    """Steps by stages: forward and backward seconds, the mean over a stage's ranks."""
    forward_name, backward_name = timers.first(FORWARD), timers.first(BACKWARD)
    if forward_name is None or backward_name is None:
        return None
    forward, backward = timers.by_rank_s(forward_name), timers.by_rank_s(backward_name)
    if forward is None or backward is None:
        return None
    stage = stage_of_ranks(np.arange(forward.shape[1]), parallel)
    if stage is None or stage[-1] + 1 != parallel.pp:
        return None
    busy = forward + backward
    fit = ~np.isin(np.arange(len(stage)), list(slow_ranks))
    members = [(stage == s) & (fit | ~fit[stage == s].any()) for s in range(stage[-1] + 1)]
    return np.stack([mean(busy[:, chosen], axis=1) for chosen in members], axis=1)


def _numbered_stages(busy: Floats, window: Floats) -> tuple[Stage, ...]:
    stall = median(1 - busy / window[:, None], axis=0)
    compute = median(busy, axis=0)
    imbalance = median((busy.max(axis=1, keepdims=True) - busy) / window[:, None], axis=0)
    return tuple(
        Stage(
            stage=index,
            stall_ratio=known(stall[index]),
            compute_s=known(compute[index]),
            imbalance_ratio=known(imbalance[index]),
        )
        for index in range(busy.shape[1])
    )


def _compute_extremes(timers: Timers) -> _Busy | None:
    """Bounds of the stages' compute: the minima, like the maxima, need not be of one stage."""
    forward_name, backward_name = timers.first(FORWARD), timers.first(BACKWARD)
    if forward_name is None or backward_name is None:
        return None
    columns = [read(name) for read in (timers.min_s, timers.max_s) for name in (forward_name, backward_name)]
    least_f, least_b, most_f, most_b = columns
    if least_f is None or least_b is None or most_f is None or most_b is None:
        return None
    least, most = least_f + least_b, most_f + most_b
    return _Busy(least, (least + most) / 2, most)


def _extreme_stages(busy: _Busy, window: Floats) -> tuple[Stage, ...]:
    return (
        Stage(
            stage=None,
            stall_ratio=median_of(1 - busy.most / window),
            compute_s=median_of(busy.most),
            imbalance_ratio=0.0,
            bound="at_least",
        ),
        Stage(
            stage=None,
            stall_ratio=median_of(1 - busy.least / window),
            compute_s=median_of(busy.least),
            imbalance_ratio=median_of((busy.most - busy.least) / window),
            bound="at_most",
        ),
    )
