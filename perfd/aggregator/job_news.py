"""Whether news of a job may be a change, or only another step like those before."""

from __future__ import annotations

from perfd.aggregator.jobs import JobState
from perfd.analysis.data.job_data import JobData
from perfd.analysis.diagnosis import JobSummary

_SAME_STEP = 0.1
"""Steps that differ by less from the usual one are as before: faults that are worth an alert cost more."""


def shows_change(job: JobState, data: JobData, summary: JobSummary) -> bool:
    """Compare what is known of a job with what its newest numbers were made of; cheap, and may be wrong.

    Samples of GPUs are not looked at: they show in the numbers of the job's next turn.
    """
    return (
        job.ended != (data.ended_unix_s is not None)
        or job.attempts.started_unix_s != data.started_unix_s
        or job.step_source != data.step_source
        or len(job.events) != len(data.events)
        or (len(job.events) > 0 and job.events[-1] is not data.events[-1])
        or (job.description is not data.description and job.description != data.description)
        or _unusual(job.steps.last_step_time_s, summary.step_time_s.median)
    )


def _unusual(step_s: float | None, usual_s: float | None) -> bool:
    return step_s is not None and usual_s is not None and abs(step_s - usual_s) > _SAME_STEP * usual_s
