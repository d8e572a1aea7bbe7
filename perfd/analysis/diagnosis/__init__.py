"""What limits a job: findings with evidence, confidence and advice, and the job summary."""

from perfd.analysis.data.analysis_settings import AnalysisSettings
from perfd.analysis.data.run_configuration import RunConfiguration
from perfd.analysis.diagnosis.checklist import Check, Checklist, CheckState
from perfd.analysis.diagnosis.job_analysis import summarise
from perfd.analysis.diagnosis.job_summary import (
    SCHEMA,
    JobPast,
    JobSummary,
    StepsSummary,
    failed_summary,
    from_json,
    job_json,
    pending_summary,
    to_json,
    with_alerts,
)

__all__ = [
    "SCHEMA",
    "AnalysisSettings",
    "Check",
    "CheckState",
    "Checklist",
    "JobPast",
    "JobSummary",
    "RunConfiguration",
    "StepsSummary",
    "failed_summary",
    "from_json",
    "job_json",
    "pending_summary",
    "summarise",
    "to_json",
    "with_alerts",
]
