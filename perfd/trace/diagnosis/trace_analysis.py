"""All that is said of a capture: every rank by itself, the ranks together, and what limits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perfd.analysis.flops.gpu_peak_lookup import PeakTable, find_gpu, find_peak
from perfd.trace.breakdown import (
    Collectives,
    CriticalPath,
    KernelRow,
    LaunchCost,
    PhaseRow,
    RankBreakdown,
    RankTimeline,
    StageStall,
    SyncPoint,
    collectives,
    critical_path,
    kernel_rows,
    launch_cost,
    phase_rows,
    stage_of,
    stage_stalls,
    sync_points,
)
from perfd.trace.model.rank_trace import RankTrace

DEFAULT_PRECISION = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """What a trace cannot know."""

    model_flops_per_step: float | None = None
    """Of the whole job."""
    model_flops_per_s_per_gpu: float | None = None
    """As another source measured it, with the time of a step there: an alternative to the above."""
    step_time_s: float | None = None
    gpus: int | None = None
    """Of the whole job; None for what the traces say, else the number of ranks."""
    precision: str = DEFAULT_PRECISION
    peaks: PeakTable = field(default_factory=PeakTable)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnalysis:
    """One rank."""

    rank: int
    timeline: RankTimeline
    stage: int | None
    whole: RankBreakdown
    steps: Sequence[RankBreakdown]
    kernels: Sequence[KernelRow]
    phases: Sequence[PhaseRow]
    launches: LaunchCost | None
    syncs: Sequence[SyncPoint]
    overhead_s: float
    """How long the profiler held the process up, within the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUse:
    """How much of the hardware's peak the model's arithmetic used."""

    mfu_ratio: float
    model_flops_per_gpu_per_step: float
    step_time_s: float
    gpus: int
    peak_flops_per_s: float
    peak_unverified: bool = False
    """Whether no source confirms the peak of one of these GPUs."""
    precision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceAnalysis:
    """One capture."""

    ranks: Sequence[RankAnalysis]
    collectives: Collectives
    stages: Sequence[StageStall]
    model_use: ModelUse | None
    path: CriticalPath | None = None
    """None if no rank has all its records."""
    link_bytes_per_s: float | None = None
    """NVLink of the GPUs in one direction; None if they differ or the table does not have it."""

    @property
    def complete(self) -> list[RankAnalysis]:
        """The ranks whose records are all there."""
        return [rank for rank in self.ranks if rank.timeline.complete]


def analyse(traces: Sequence[RankTrace], settings: TraceSettings | None = None) -> TraceAnalysis:
    """Everything about numbered traces of one capture. Pure: the same traces give the same analysis."""
    timelines = {trace.rank: RankTimeline(trace) for trace in traces if trace.rank is not None}
    found = collectives(timelines)
    ranks = [_rank(rank, timeline) for rank, timeline in timelines.items()]
    return TraceAnalysis(
        ranks=ranks,
        collectives=found,
        stages=stage_stalls(timelines, found),
        model_use=_model_use(ranks, settings or TraceSettings()),
        path=critical_path(timelines, found),
        link_bytes_per_s=_link_bytes_per_s(ranks, settings or TraceSettings()),
    )


def _link_bytes_per_s(ranks: Sequence[RankAnalysis], settings: TraceSettings) -> float | None:
    names = {rank.timeline.trace.gpu or "" for rank in ranks}
    row = find_gpu(settings.peaks, next(iter(names))) if len(names) == 1 else None
    return row.nvlink_bytes_per_s / 2 if row and row.nvlink_bytes_per_s else None


def _rank(rank: int, timeline: RankTimeline) -> RankAnalysis:
    starts, ends = timeline.trace.overhead
    window = timeline.window
    held = (ends.clip(window.start_ns, window.end_ns) - starts.clip(window.start_ns, window.end_ns)).sum()
    return RankAnalysis(
        rank=rank,
        timeline=timeline,
        stage=stage_of(timeline.trace),
        whole=timeline.whole(),
        steps=timeline.by_step(),
        kernels=kernel_rows(timeline),
        phases=phase_rows(timeline),
        launches=launch_cost(timeline),
        syncs=sync_points(timeline),
        overhead_s=float(held) / 1e9,
    )


def _model_use(ranks: Sequence[RankAnalysis], settings: TraceSettings) -> ModelUse | None:
    """Model FLOPs of a step / (its time x GPUs x dense peak); None when any of them is unknown."""
    gpus = settings.gpus or max((rank.timeline.trace.world_size or 0 for rank in ranks), default=0)
    gpus = max(gpus, len(ranks))
    times = [step.span_s for rank in ranks for step in rank.steps]
    flops = _flops_per_gpu(settings, gpus)
    names = {rank.timeline.trace.gpu or "" for rank in ranks}
    peaks = {find_peak(settings.peaks, name, settings.precision) for name in names}
    rows = [find_gpu(settings.peaks, name) for name in names]
    peak = next(iter(peaks)) if len(peaks) == 1 else None
    if flops is None or not times or peak is None:
        return None
    step_time_s = sum(times) / len(times)
    return ModelUse(
        mfu_ratio=flops / step_time_s / peak,
        model_flops_per_gpu_per_step=flops,
        step_time_s=step_time_s,
        gpus=gpus,
        peak_flops_per_s=peak,
        peak_unverified=any(row is not None and row.unverified_of(settings.precision) for row in rows),
        precision=settings.precision,
    )


def _flops_per_gpu(settings: TraceSettings, gpus: int) -> float | None:
    if settings.model_flops_per_step is not None:
        return settings.model_flops_per_step / gpus
    if settings.model_flops_per_s_per_gpu is not None and settings.step_time_s is not None:
        return settings.model_flops_per_s_per_gpu * settings.step_time_s
    return None


def by_rank(analysis: TraceAnalysis) -> Mapping[int, RankAnalysis]:
    """The ranks by their numbers."""
    return {rank.rank: rank for rank in analysis.ranks}
