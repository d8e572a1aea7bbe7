"""What shows, before an analysis and at little cost, that a job's numbers may have changed."""

from __future__ import annotations

from dataclasses import dataclass

from perfd.aggregator.jobs import JobState
from perfd.aggregator.summary_turns import SECONDS_FOR_ALL
from perfd.analysis.data.job_data import JobData
from perfd.analysis.diagnosis import JobSummary

_SAME_STEP = 0.1
"""Steps that differ by less from the usual one are as before: faults that are worth an alert cost more."""

_STEPS_OF_STALL = 3
"""A job without a new step for so many usual ones may hang. Chosen: as soon as alerts should come."""

CALM_AFTER_S = 30.0
"""Without a sign of a change: an analysis has then seen many steps of what is now. Chosen."""


@dataclass(frozen=True, slots=True)
class Signs:
    """What a job shows in one round."""

    presses: bool
    """Whether it may have changed since its newest numbers were made."""
    calm: bool
    """Whether its steps would show a change soon, and have shown none for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is known of a job in one round without an analysis."""

    newest_unix_s: float | None
    """When its newest step ended, by its own clock; None before the first one."""
    usual_step_s: float | None
    """By its newest numbers; None where they say nothing of steps, or there are none."""
    line_s: float | None
    """From one progress line that says how long steps take to the next; None where none does."""
    changed: bool
    """Whether anything else is not as in its newest numbers."""


@dataclass(slots=True)
class _Seen:
    changed_s: float
    """When the job last showed a change, or could not have shown one."""
    newest_unix_s: float | None
    """When its newest step ended, by its own clock."""
    newest_s: float
    """When that was first seen."""


class JobChanges:
    """What each job has shown from round to round."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def signs(self, name: str, job: Progress, now_s: float, waited_s: float) -> Signs:
        """The signs of a job whose numbers were made `waited_s` ago."""
        seen = self._seen.setdefault(name, _Seen(now_s, job.newest_unix_s, now_s))
        if seen.newest_unix_s != job.newest_unix_s:
            seen.newest_unix_s, seen.newest_s = job.newest_unix_s, now_s
        presses = job.changed or _stalls(job, min(waited_s, now_s - seen.newest_s))
        if presses or job.line_s is None or job.line_s > SECONDS_FOR_ALL:
            seen.changed_s = now_s
        return Signs(presses=presses, calm=now_s - seen.changed_s >= CALM_AFTER_S)

    def forget(self, name: str) -> None:
        """Forget a job that is gone."""
        self._seen.pop(name, None)


def _stalls(job: Progress, waited_s: float) -> bool:
    """Whether there was no further step for so long that several were due, nor were numbers made since."""
    usual_s = job.usual_step_s
    return usual_s is not None and job.newest_unix_s is not None and waited_s > _STEPS_OF_STALL * usual_s


def progress_of(job: JobState, data: JobData | None, summary: JobSummary | None) -> Progress:
    """Compare what is known of a job with what its newest numbers were made of; cheap, and may be wrong.

    Samples of GPUs are not looked at: they show in the numbers of the job's next turn.
    """
    newest_unix_s, step_s = job.steps.last_unix_s, job.steps.last_step_time_s
    if data is None or summary is None:
        return Progress(newest_unix_s=newest_unix_s, usual_step_s=None, line_s=None, changed=False)
    usual_s = summary.step_time_s.median
    timed = step_s is not None and usual_s is not None and len(data.steps) > 0
    return Progress(
        newest_unix_s=newest_unix_s,
        usual_step_s=usual_s if len(data.steps) else None,
        line_s=usual_s * float(data.steps.steps_covered[-1]) if timed and usual_s is not None else None,
        changed=_changed(job, data)
        or (step_s is not None and usual_s is not None and abs(step_s - usual_s) > _SAME_STEP * usual_s),
    )


def _changed(job: JobState, data: JobData) -> bool:
    return (
        job.ended != (data.ended_unix_s is not None)
        or job.attempts.started_unix_s != data.started_unix_s
        or job.step_source != data.step_source
        or len(job.events) != len(data.events)
        or (len(job.events) > 0 and job.events[-1] is not data.events[-1])
        or (job.description is not data.description and job.description != data.description)
    )
