"""The summary of a job: every derived number of `perfd.summary/2` from what the job reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from perfd.analysis.collectives import NcclSummary
from perfd.analysis.communication import CaptureEvidence, Communication
from perfd.analysis.data.analysis_settings import AnalysisSettings
from perfd.analysis.data.job_data import JobData
from perfd.analysis.diagnosis.bottleneck import find_bottlenecks
from perfd.analysis.diagnosis.checklist import Checklist, checklist
from perfd.analysis.diagnosis.job_analysis import facts_of
from perfd.analysis.findings import Finding, finding_json
from perfd.analysis.hang import ErrorSummary, troubles
from perfd.analysis.steps import (
    DataLoading,
    Efficiency,
    GpuActivity,
    Memory,
    Optimizer,
    Pipeline,
    SteadySteps,
    StepBreakdown,
    StepTime,
    goodput_ratio,
    gpu_activity,
    steady_rows,
)
from perfd.analysis.stragglers import RankSlowdown
from perfd.model import Alert, GpuColumn, ParallelLayout, StepSource, alert_json

__all__ = [
    "SCHEMA",
    "AnalysisSettings",
    "GpuSummary",
    "JobSummary",
    "StepsSummary",
    "from_json",
    "job_json",
    "summarise",
    "to_json",
]

SCHEMA = "perfd.summary/2"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsSummary:
    """Progress lines of the log, or rows by NCCL's operations; `first` and `last` are step numbers."""

    source: StepSource | None = None
    micro_batches: bool = False
    """Whether what counts as a step here may be one of several micro-batches: operations do not show it."""
    count: int
    steady_count: int
    steady_steps_count: int = 0
    """Steps in the steady lines, of which each may be about several."""
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
    """One job of `perfd.summary/2`. Ratios are medians over steady steps; None where unknown."""

    name: str
    framework: str | None
    parallel: ParallelLayout
    """Its `world_size` is the number of GPUs seen where the job does not report one."""
    steps: StepsSummary
    step_time_s: StepTime
    efficiency: Efficiency
    communication: Communication
    nccl: NcclSummary = field(default_factory=NcclSummary)
    pipeline: Pipeline
    data: DataLoading
    optimizer: Optimizer
    breakdown: StepBreakdown
    memory: Memory
    goodput_ratio: float | None = None
    slowdowns: Sequence[RankSlowdown] = ()
    """Of each rank by its peers."""
    gpus: Sequence[GpuSummary] = ()
    capture: CaptureEvidence | None = None
    """What the newest analyzed capture showed, and whether that still holds."""
    findings: Sequence[Finding]
    """What limits the job, the bottleneck first; never empty."""
    checklist: Checklist = field(default_factory=Checklist)
    """The guide's questions, answered by the numbers above."""
    troubles: Sequence[ErrorSummary] = ()
    """What the log, NCCL and the hardware complained of."""
    alerts: Sequence[Alert] = ()

    @property
    def bottleneck(self) -> Finding:
        """What to act on first."""
        return self.findings[0]

    @property
    def others(self) -> list[Finding]:
        """The findings with evidence that the bottleneck does not give already, in their order."""
        told = set(self.bottleneck.evidence)
        return [one for one in self.findings if one != self.bottleneck and not told.issuperset(one.evidence)]


def summarise(job: JobData, settings: AnalysisSettings) -> JobSummary:
    """Derive every number of a job at once. Pure: the same data give the same summary."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return _summarise(job, settings)


def to_json(summaries: Iterable[JobSummary]) -> dict[str, Any]:
    """The object that `perfd replay --json` prints; unknown values are null."""
    return {"schema": SCHEMA, "jobs": [job_json(summary) for summary in summaries]}


def job_json(summary: JobSummary) -> dict[str, Any]:
    """One job of it, with its first finding as `bottleneck` too."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(summary))
    findings = [finding_json(finding) for finding in summary.findings]
    alerts = [alert_json(alert) for alert in summary.alerts]
    return plain | {"bottleneck": findings[0], "findings": findings, "alerts": alerts}


def from_json(document: Mapping[str, Any]) -> list[JobSummary]:
    """Read such an object back; keys that this version does not know are ignored.

    Raises `msgspec.ValidationError` with the path of what is wrong.
    """
    return msgspec.convert(document, _Document).jobs


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    jobs: list[JobSummary]


def _summarise(job: JobData, settings: AnalysisSettings) -> JobSummary:
    steady = steady_rows(job.steps, job.events, settings.window_steps)
    activity = gpu_activity(job.gpu, job.steps, steady.rows)
    facts = facts_of(job, settings, steady, activity)
    findings = find_bottlenecks(facts)
    return JobSummary(
        name=job.name,
        framework=job.description.framework if job.description else None,
        parallel=facts.parallel,
        steps=_steps(job, steady),
        step_time_s=facts.step_time,
        efficiency=facts.efficiency,
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
        findings=tuple(findings),
        checklist=checklist(facts),
        troubles=troubles(job.events),
        alerts=tuple(job.alerts),
    )


def _steps(job: JobData, steady: SteadySteps) -> StepsSummary:
    count = len(job.steps)
    return StepsSummary(
        source=job.step_source,
        micro_batches=job.operation_pace is not None and not job.operation_pace.certain,
        count=count,
        steady_count=len(steady.rows),
        steady_steps_count=int(job.steps.steps_covered[steady.rows].sum()),
        first=int(job.steps.step[0]) if count else None,
        last=int(job.steps.step[-1]) if count else None,
        dropped={reason.value: tuple(steps) for reason, steps in steady.dropped.items()},
    )


def _gpus(activity: GpuActivity) -> tuple[GpuSummary, ...]:
    names = (GpuColumn.SM_ACTIVE, GpuColumn.TENSOR_ACTIVE, GpuColumn.DRAM_ACTIVE, GpuColumn.POWER)
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
