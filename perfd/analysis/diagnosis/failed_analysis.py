"""The summary of a job whose analysis failed."""

from __future__ import annotations

from perfd.analysis.communication import Communication
from perfd.analysis.diagnosis import Finding, JobSummary, Kind, ParallelSummary, StepsSummary
from perfd.analysis.steps import DataLoading, Memory, Optimizer, Pipeline, StepBreakdown, StepTime


def failed_summary(name: str, reason: str) -> JobSummary:
    """A summary in which all is unknown but the job's name and the reason, a sentence."""
    finding = Finding(
        kind=Kind.ANALYSIS_FAILED,
        confidence=0.0,
        evidence=(f"Analysis failed: {reason}",),
        recommendation="Report it with the traceback in the aggregator's log. Other jobs are not affected.",
    )
    return JobSummary(
        name=name,
        framework=None,
        world_size=None,
        parallel=ParallelSummary(),
        steps=StepsSummary(count=0, steady_count=0),
        step_time_s=StepTime(),
        communication=Communication(),
        pipeline=Pipeline(),
        data=DataLoading(),
        optimizer=Optimizer(),
        breakdown=StepBreakdown(),
        memory=Memory(),
        bottleneck=finding,
        findings=(finding,),
    )
