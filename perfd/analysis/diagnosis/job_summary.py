"""The summary of a job: every derived number of `perfd.summary/2`, and its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from perfd.analysis.collectives import NcclSummary
from perfd.analysis.communication import CaptureEvidence, Communication
from perfd.analysis.data.run_configuration import RunConfiguration
from perfd.analysis.diagnosis.checklist import Checklist
from perfd.analysis.findings import FaultPeriod, Finding, Kind, advice, finding_json
from perfd.analysis.hang import ErrorSummary
from perfd.analysis.steps import (
    DataLoading,
    Efficiency,
    Memory,
    Optimizer,
    Pipeline,
    StepBreakdown,
    StepTime,
)
from perfd.analysis.stragglers import RankSlowdown
from perfd.formatting import duration
from perfd.model import Alert, ParallelLayout, StepDoubt, StepSource, alert_json, one_step

__all__ = [
    "SCHEMA",
    "GpuSummary",
    "JobPast",
    "JobSummary",
    "StepsSummary",
    "failed_summary",
    "from_json",
    "job_json",
    "pending_summary",
    "to_json",
    "with_alerts",
]

SCHEMA = "perfd.summary/2"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsSummary:
    """Progress lines of the log, or rows by NCCL's operations; `first` and `last` are step numbers."""

    source: StepSource | None = None
    doubt: StepDoubt | None = None
    """What each may be instead, where operations do not show it."""
    count: int
    steady_count: int
    steady_steps_count: int = 0
    """Steps in the steady lines, of which each may be about several."""
    first: int | None = None
    last: int | None = None
    dropped: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Steps that are not steady, by reason; an entry without steps is left out."""
    of_earlier_start: bool = False
    """Whether the job's processes began after the last one."""

    @property
    def one(self) -> str:
        """What each of them is, in words."""
        return one_step(self.doubt)


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
class JobPast:
    """What the job went through, which its newest numbers may no longer show."""

    restarts_count: int = 0
    """How often it started again."""
    restarts_lost_s: float | None = None
    """The time that this cost, steps that were computed again included; None where no start says."""
    faults: Sequence[FaultPeriod] = ()
    """The oldest first, those that go on included."""

    @property
    def restarts_sentence(self) -> str:
        """How often it started again and what that cost; empty if it did not."""
        if not self.restarts_count:
            return ""
        times = "once" if self.restarts_count == 1 else f"{self.restarts_count} times"
        if self.restarts_lost_s is None:
            return f"The job started again {times}."
        lost = duration(self.restarts_lost_s)
        return f"The job started again {times}, which cost {lost}, steps that were made twice included."


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
    past: JobPast = field(default_factory=JobPast)
    alerts: Sequence[Alert] = ()
    """Of the job, that fired; no number depends on them."""
    configuration: RunConfiguration = field(default_factory=RunConfiguration)
    """Model, software and options, to compare with another run."""

    @property
    def bottleneck(self) -> Finding:
        """What to act on first."""
        return self.findings[0]

    @property
    def others(self) -> list[Finding]:
        """The findings with evidence that the bottleneck does not give already, in their order."""
        shown = set(self.bottleneck.evidence)
        return [one for one in self.findings if one != self.bottleneck and not shown.issuperset(one.evidence)]


def to_json(summaries: Iterable[JobSummary]) -> dict[str, Any]:
    """The object that `perfd replay --json` prints; unknown values are null."""
    return {"schema": SCHEMA, "jobs": [job_json(summary) for summary in summaries]}


def job_json(summary: JobSummary) -> dict[str, Any]:
    """One job of it, with its first finding as `bottleneck` too."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(summary))
    findings = [finding_json(finding) for finding in summary.findings]
    alerts = [alert_json(alert) for alert in summary.alerts]
    plain["past"]["restarts_sentence"] = summary.past.restarts_sentence
    plain["past"]["faults"] = [
        {**fault, "headline": one.headline, "period": one.period, "cost": one.cost, "sentence": one.sentence}
        for fault, one in zip(plain["past"]["faults"], summary.past.faults, strict=True)
    ]
    return plain | {"bottleneck": findings[0], "findings": findings, "alerts": alerts}


def with_alerts(summary: JobSummary, alerts: Sequence[Alert]) -> JobSummary:
    """The summary with the job's alerts, which are evidence where the cause of its losses is unknown."""
    fired: dict[str, list[str]] = {}
    for alert in alerts:
        if alert.fired_at_unix_s is not None:
            steps = fired.setdefault(alert.name, [])
            steps += [] if alert.first_step is None else [f"{alert.first_step:,}"]
    head, *others = summary.findings
    if head.kind is Kind.UNKNOWN and fired:
        names = [f"{name} (step {', '.join(steps)})" if steps else name for name, steps in fired.items()]
        what = "Over the steps of this summary that does not suffice for a cause."
        said = f"These alerts fired while the job ran: {'; '.join(names)}. {what}"
        head = replace(head, evidence=(*head.evidence, said))
    return replace(summary, findings=(head, *others), alerts=tuple(alerts))


def from_json(document: Mapping[str, Any]) -> list[JobSummary]:
    """Read such an object back; keys that this version does not know are ignored.

    Raises `msgspec.ValidationError` with the path of what is wrong.
    """
    return msgspec.convert(document, _Document).jobs


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    jobs: list[JobSummary]


msgspec.json.Decoder(_Document)
"""Learns the types at import: msgspec 0.22 crashes if two threads first convert to a type concurrently."""


def failed_summary(name: str, reason: str) -> JobSummary:
    """A summary in which all is unknown but the job's name and the reason, a sentence."""
    return _unknown(
        name,
        Finding(
            kind=Kind.ANALYSIS_FAILED,
            confidence=0.0,
            evidence=(f"Analysis failed: {reason}",),
            advice=advice.ANALYSIS_FAILED,
        ),
    )


def pending_summary(name: str) -> JobSummary:
    """A summary of a job whose first analysis is still to come."""
    evidence = "It is new, and each round analyzes only some of many jobs."
    return _unknown(name, Finding(kind=Kind.UNKNOWN, confidence=0.0, evidence=(evidence,)))


def _unknown(name: str, finding: Finding) -> JobSummary:
    return JobSummary(
        name=name,
        framework=None,
        parallel=ParallelLayout(),
        steps=StepsSummary(count=0, steady_count=0),
        step_time_s=StepTime(),
        efficiency=Efficiency(),
        communication=Communication(),
        pipeline=Pipeline(),
        data=DataLoading(),
        optimizer=Optimizer(),
        breakdown=StepBreakdown(),
        memory=Memory(),
        findings=(finding,),
    )
