"""The summary of a job: every derived number of `perfd.summary/1` from what the job reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from perfd.analysis.activity import GpuActivity, gpu_activity
from perfd.analysis.bottleneck import find_bottlenecks
from perfd.analysis.captured import CaptureEvidence, capture_evidence
from perfd.analysis.clocks import held_clocks
from perfd.analysis.communication import Communication, communication, with_capture, with_kernels
from perfd.analysis.efficiency import Efficiency, efficiency, gpu_infos, world_size
from perfd.analysis.findings import Facts, Finding
from perfd.analysis.flops import FlopsConvention
from perfd.analysis.flops_check import FlopsCheck
from perfd.analysis.hang import hang
from perfd.analysis.links import data_parallel_link_bytes_per_s, speeds
from perfd.analysis.nccl import Nccl, nccl
from perfd.analysis.peaks import PeakTable
from perfd.analysis.pipeline import Pipeline, pipeline
from perfd.analysis.pipeline_waits import with_waiting
from perfd.analysis.places import Speeds
from perfd.analysis.sequences import unequal_sequences
from perfd.analysis.shares import (
    Breakdown,
    DataLoading,
    Memory,
    Optimizer,
    StepTime,
    breakdown,
    data_loading,
    goodput_ratio,
    memory,
    optimizer,
    step_time,
)
from perfd.analysis.slowdowns import RankSlowdown, slowdowns
from perfd.analysis.steady import Steady, steady_rows
from perfd.analysis.stragglers import (
    seen_busier_ratio,
    seen_idle_ratio,
    stragglers_by_activity,
    stragglers_by_timers,
    undecided_by_activity,
)
from perfd.analysis.tables import AlertRecord, JobData
from perfd.analysis.timers import Timers
from perfd.model import EventKind, ParallelLayout

SCHEMA = "perfd.summary/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisSettings:
    """How derived numbers are defined, apart from the job."""

    convention: FlopsConvention = FlopsConvention.MEGATRON
    peaks: PeakTable = field(default_factory=PeakTable)
    window_steps: int | None = None
    """The newest so many steady steps that medians are over; None for all."""
    peak_precision: str | None = None
    """The precision whose peak MFU is measured against; None for the job's own."""
    network_bytes_per_s: float | None = None
    """One direction of a GPU's share of the network between nodes; the ring formula needs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSummary:
    """Sizes of the job's groups."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    vp: int | None = None
    micro_batches: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsSummary:
    """Progress lines of the log; `first` and `last` are step numbers."""

    count: int
    steady_count: int
    first: int | None = None
    last: int | None = None
    dropped: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Steps that are not steady, by reason; an entry without steps is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSummary:
    """One GPU over steady steps."""

    node: str
    gpu: str
    rank: int | None = None
    sm_active_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """One job of `perfd.summary/1`. Ratios are medians over steady steps; None where unknown."""

    name: str
    framework: str | None
    world_size: int | None
    parallel: ParallelSummary
    steps: StepsSummary
    step_time_s: StepTime
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    samples_per_s: float | None = None
    samples_per_s_per_gpu: float | None = None
    model_flops_per_s_per_gpu: float | None = None
    mfu_ratio: float | None = None
    hfu_ratio: float | None = None
    peak_flops_per_s: float | None = None
    peak_precision: str | None = None
    flops_convention: str | None = None
    mfu_source: str | None = None
    mfu_upper_ratio: float | None = None
    clock_adjusted_mfu_ratio: float | None = None
    tensor_active_ratio: float | None = None
    flops_check: FlopsCheck | None = None
    communication: Communication
    nccl: Nccl = field(default_factory=Nccl)
    pipeline: Pipeline
    data: DataLoading
    optimizer: Optimizer
    breakdown: Breakdown
    memory: Memory
    goodput_ratio: float | None = None
    slowdowns: Sequence[RankSlowdown] = ()
    """Of each rank by its peers."""
    gpus: Sequence[GpuSummary] = ()
    capture: CaptureEvidence | None = None
    """What the newest capture that was analysed showed, and whether that is evidence of now."""
    bottleneck: Finding
    findings: Sequence[Finding] = ()
    """All of them, the bottleneck first."""
    alerts: Sequence[AlertRecord] = ()


def summarise(job: JobData, settings: AnalysisSettings) -> JobSummary:
    """Derive every number of a job at once. Pure: the same data give the same summary."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return _summarise(job, settings)


def to_json(summaries: Iterable[JobSummary]) -> dict[str, Any]:
    """The object that `perfd replay --json` prints; unknown values are null.

    `diagnosis` and `findings` are the same list: the older name stays.
    """
    document = _Document(schema=SCHEMA, jobs=list(summaries))
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    for job in plain["jobs"]:
        job["diagnosis"] = job["findings"]
    return plain


def from_json(document: Mapping[str, Any]) -> list[JobSummary]:
    """Read such an object back; keys that this version does not know are ignored.

    Raises `msgspec.ValidationError` with the path of what is wrong.
    """
    return msgspec.convert(document, _Document).jobs


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    jobs: list[JobSummary]


def _summarise(job: JobData, settings: AnalysisSettings) -> JobSummary:
    steady = steady_rows(job.steps, job.events, settings.window_steps)
    activity = gpu_activity(job.gpu, job.steps, steady.rows)
    facts = _facts(job, settings, steady, activity)
    findings = find_bottlenecks(facts)
    speed = facts.efficiency
    return JobSummary(
        name=job.name,
        framework=job.description.framework if job.description else None,
        world_size=world_size(job),
        parallel=_parallel(facts.parallel),
        steps=_steps(job, steady),
        step_time_s=facts.step_time,
        tokens_per_s=speed.tokens_per_s,
        tokens_per_s_per_gpu=speed.tokens_per_s_per_gpu,
        samples_per_s=speed.samples_per_s,
        samples_per_s_per_gpu=speed.samples_per_s_per_gpu,
        model_flops_per_s_per_gpu=speed.model_flops_per_s_per_gpu,
        mfu_ratio=speed.mfu_ratio,
        hfu_ratio=speed.hfu_ratio,
        peak_flops_per_s=speed.peak_flops_per_s,
        peak_precision=speed.peak_precision,
        flops_convention=speed.flops_convention,
        mfu_source=speed.mfu_source,
        mfu_upper_ratio=speed.mfu_upper_ratio,
        clock_adjusted_mfu_ratio=speed.clock_adjusted_mfu_ratio,
        tensor_active_ratio=speed.tensor_active_ratio,
        flops_check=speed.flops_check,
        communication=facts.communication,
        nccl=facts.nccl,
        pipeline=facts.pipeline,
        data=facts.data,
        optimizer=facts.optimizer,
        breakdown=facts.breakdown,
        memory=facts.memory,
        goodput_ratio=goodput_ratio(job, steady, facts.step_time.median),
        slowdowns=facts.slowdowns,
        gpus=_gpus(activity),
        capture=facts.capture,
        bottleneck=findings[0],
        findings=tuple(findings),
        alerts=tuple(job.alerts),
    )


def _facts(job: JobData, settings: AnalysisSettings, steady: Steady, activity: GpuActivity) -> Facts:
    description = job.description
    parallel = _with_world(description.parallel if description else ParallelLayout(), job)
    timers = Timers.of(job.phases, job.steps, steady.rows)
    times = job.steps.step_time_s[steady.rows]
    joined = speeds(job, settings.peaks, settings.network_bytes_per_s)
    link = data_parallel_link_bytes_per_s(
        parallel, gpu_infos(job), job, settings.peaks, _slowest(joined, settings)
    )
    by_timers = stragglers_by_timers(timers, times, parallel)
    of_steps = step_time(job.steps.step_time_s, steady)
    capture = capture_evidence(job, of_steps.median)
    kernels = nccl(job, parallel, step_s=of_steps.median, speeds=joined)
    return Facts(
        parallel=parallel,
        efficiency=_efficiency(job, settings, steady, activity),
        communication=with_capture(
            with_kernels(communication(timers, times, description, link), kernels), kernels, capture
        ),
        nccl=kernels,
        pipeline=with_waiting(
            pipeline(timers, description, {straggler.rank for straggler in by_timers}),
            parallel,
            kernels,
            of_steps.median,
        ),
        data=data_loading(timers, times),
        optimizer=optimizer(timers, times),
        breakdown=breakdown(timers, times),
        memory=memory(job, settings.peaks),
        step_time=of_steps,
        activity=activity,
        slowdowns=slowdowns(timers, kernels, parallel),
        stragglers_by_timers=by_timers,
        stragglers_by_activity=stragglers_by_activity(activity, parallel),
        activity_undecided=undecided_by_activity(activity, parallel),
        idle_ratio=seen_idle_ratio(activity, parallel),
        busier_ratio=seen_busier_ratio(activity, parallel),
        held_clocks=held_clocks(job, activity),
        sequences=unequal_sequences(timers, times, parallel),
        hang=hang(job),
        capture=capture,
        silent_gpu_ranks=_silent_gpu_ranks(activity, parallel),
        transport_remarks=tuple(
            dict.fromkeys(
                event.message
                for event in job.events
                if event.kind is EventKind.NCCL_WARNING and event.message.startswith("NCCL connects")
            )
        ),
        nodes=len({key.node for key in activity.gpus}),
    )


def _slowest(joined: Speeds, settings: AnalysisSettings) -> float | None:
    """A GPU's share of the network, where it is least; what was told also holds where no node is known."""
    return settings.network_bytes_per_s or min(joined.network_bytes_per_s.values(), default=None)


def _silent_gpu_ranks(activity: GpuActivity, parallel: ParallelLayout) -> tuple[int, ...]:
    ranks = {key.rank for key in activity.gpus if key.rank is not None}
    if not ranks or not parallel.world_size:
        return ()
    return tuple(rank for rank in range(parallel.world_size) if rank not in ranks)


def _efficiency(
    job: JobData, settings: AnalysisSettings, steady: Steady, activity: GpuActivity
) -> Efficiency:
    return efficiency(
        job,
        steady.rows,
        activity,
        convention=settings.convention,
        peaks=settings.peaks,
        precision=settings.peak_precision,
    )


def _with_world(parallel: ParallelLayout, job: JobData) -> ParallelLayout:
    """A layout that does not say the world's size gets the number of GPUs that are seen."""
    return parallel if parallel.world_size else replace(parallel, world_size=world_size(job))


def _parallel(parallel: ParallelLayout) -> ParallelSummary:
    return ParallelSummary(
        tp=parallel.tp,
        pp=parallel.pp,
        dp=parallel.dp,
        cp=parallel.cp,
        ep=parallel.ep,
        vp=parallel.vp,
        micro_batches=parallel.micro_batches,
    )


def _steps(job: JobData, steady: Steady) -> StepsSummary:
    count = len(job.steps)
    return StepsSummary(
        count=count,
        steady_count=len(steady.rows),
        first=int(job.steps.step[0]) if count else None,
        last=int(job.steps.step[-1]) if count else None,
        dropped={reason.value: tuple(steps) for reason, steps in steady.dropped.items()},
    )


def _gpus(activity: GpuActivity) -> tuple[GpuSummary, ...]:
    names = ("sm_active_ratio", "tensor_active_ratio", "dram_active_ratio", "power_w")
    columns = [
        [value if value == value else None for value in activity.of_gpus(name).tolist()]  # noqa: PLR0124 - NaN
        for name in names
    ]
    return tuple(
        GpuSummary(
            node=key.node,
            gpu=key.gpu,
            rank=key.rank,
            sm_active_ratio=sm,
            tensor_active_ratio=tensor,
            dram_active_ratio=dram,
            power_w=power,
        )
        for key, sm, tensor, dram, power in zip(activity.gpus, *columns, strict=True)
    )
