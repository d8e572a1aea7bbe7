"""What limits a job: findings with evidence, confidence and advice, and the job summary."""

from perfd.analysis.diagnosis.finding_titles import LIMITS
from perfd.analysis.diagnosis.findings import Finding, Kind
from perfd.analysis.diagnosis.job_summary import (
    SCHEMA,
    AnalysisSettings,
    JobSummary,
    ParallelSummary,
    StepsSummary,
    from_json,
    summarise,
    to_json,
)

__all__ = [
    "LIMITS",
    "SCHEMA",
    "AnalysisSettings",
    "Finding",
    "JobSummary",
    "Kind",
    "ParallelSummary",
    "StepsSummary",
    "from_json",
    "summarise",
    "to_json",
]
