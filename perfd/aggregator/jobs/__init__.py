"""The state of one job: its names, owners, attempts, steps, and when it ended."""

from perfd.aggregator.jobs.job_lifetime import JobEnd
from perfd.aggregator.jobs.job_registry import JobRegistry, as_member
from perfd.aggregator.jobs.job_state import JobState
from perfd.aggregator.jobs.record_source import RecordSource
from perfd.aggregator.jobs.shown_steps import shown_steps

__all__ = ["JobEnd", "JobRegistry", "JobState", "RecordSource", "as_member", "shown_steps"]
