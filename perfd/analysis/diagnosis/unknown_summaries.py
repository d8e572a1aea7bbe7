"""Summaries of jobs without an analysis: it failed, or is still to come."""

from __future__ import annotations

from perfd.analysis.communication import Communication
from perfd.analysis.diagnosis import JobSummary, StepsSummary
from perfd.analysis.findings import Finding, Kind, advice
from perfd.analysis.steps import DataLoading, Efficiency, Memory, Optimizer, Pipeline, StepBreakdown, StepTime
from perfd.model import ParallelLayout


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
