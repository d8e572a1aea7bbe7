"""How long a job has made no step, and from when on that says something.

A log is silent while a job saves a checkpoint, too, and all ranks wait for the one that writes. So silence
counts from where it is longer than any earlier pause of this job, and far longer after the log has said that
a checkpoint begins, or the first time that it evaluates. Of a job that ended with an error it is the time
after its newest step: watchdogs end jobs that hang, and so do people.
"""

from __future__ import annotations

import math

import numpy as np

from perfd.analysis.data.job_data import JobData, StepTable
from perfd.model import EventKind
from perfd.thresholds import THRESHOLDS

REPORT_S = 1.5
"""Counters are read once a second, so they are known to stand for less long than the log is silent."""
_OCCASIONS = frozenset({
    EventKind.CHECKPOINT, EventKind.CHECKPOINT_STARTED, EventKind.EVALUATION, EventKind.PROFILE,
})  # fmt: skip


def silence_s(job: JobData) -> float | None:
    """How long a job makes no step, or made none until an error ended it; None if it does, or is unknown."""
    return _silent_s(job) if job.ended_unix_s is None else _still_before_its_end_s(job)


def patience_s(job: JobData) -> float:
    """How long a job may be silent before that says something; of one without a step NCCL alone shows it."""
    known = THRESHOLDS.hang_one_rank_silence_s if len(job.steps) else THRESHOLDS.hang_silence_s
    return max(longest_pause_s(job.steps, least_s=known), _excused_s(job))


def longest_pause_s(steps: StepTable, *, least_s: float = THRESHOLDS.hang_silence_s) -> float:
    """How long the job may be silent before that says something."""
    pauses = np.diff(steps.time_unix_s)
    pauses = pauses[np.isfinite(pauses)]
    between_s = steps.step_time_s * steps.steps_covered
    between_s = between_s[np.isfinite(between_s)]
    if not len(between_s) or (steps.steps_covered == 0).any():
        # By arrival a time is that of a stretch of lines. Lines that were read together are one sign of life.
        between_s = pauses[pauses > 0]
    usual_s = float(np.median(between_s)) if len(between_s) else 0.0
    # The first line comes after start-up, so only pauses between lines count.
    longest_s = float(pauses.max()) if len(pauses) else 0.0
    return max(least_s, THRESHOLDS.hang_intervals * usual_s, THRESHOLDS.hang_pauses * longest_s)


def said_of_silence(job: JobData, silent_s: float) -> str:
    """How long it is, in words without a full stop."""
    if job.ended_unix_s is not None:
        code = _exit_code(job)
        return f"The job ended with exit code {code} after {silent_s:.0f} s without a step"
    if job.log_silent_s == silent_s:
        return f"The log has been silent for {silent_s:.0f} s"
    return f"Nothing has moved for {silent_s:.0f} s"


def without_steps(job: JobData) -> str | None:
    """That a job makes no more steps, where that says something, as a sentence that stays true."""
    still_s = silence_s(job)
    if still_s is None or still_s < patience_s(job) or not len(job.steps):
        return None
    if job.ended_unix_s is not None:
        return f"{said_of_silence(job, still_s)}, longer than its earlier pauses."
    return f"No step since step {int(job.steps.step[-1])}: longer than any earlier pause of this job."


def _excused_s(job: JobData) -> float:
    """How long the log may be silent if its newest line is not a step but makes steps wait."""
    newest_s = float(job.steps.time_unix_s[-1]) if len(job.steps) else 0.0
    since = [e for e in job.events if e.kind in _OCCASIONS and e.time_unix_ns / 1e9 >= newest_s]
    if not since:
        return 0.0
    newest = max(since, key=lambda event: event.time_unix_ns)
    if newest.kind is EventKind.EVALUATION:
        before = any(e.kind is EventKind.EVALUATION and e.time_unix_ns / 1e9 < newest_s for e in job.events)
        return 0.0 if before else THRESHOLDS.hang_first_evaluation_s
    # A log with a line for the beginning has the other for the end, after which steps go on.
    saved = newest.kind is EventKind.CHECKPOINT
    reported = saved and any(event.kind is EventKind.CHECKPOINT_STARTED for event in job.events)
    return 0.0 if reported else THRESHOLDS.hang_checkpoint_s


def _silent_s(job: JobData) -> float | None:
    """Of the log and of NCCL: a log that prints rarely says nothing of a job whose ranks begin operations."""
    times = job.nccl
    moving = np.isfinite(times.operations)
    if job.log_silent_s is not None:
        # A job that has not made a step yet loads, compiles and connects.
        still_s = float(times.still_s[moving].min()) + REPORT_S if moving.any() else math.inf
        return min(job.log_silent_s, still_s) if len(job.steps) else None
    if not moving.any():
        return None
    silent_s = float(times.still_s[moving].min())
    # A rank that has begun nothing at all may still be loading what the others have loaded.
    starting = bool((times.operations == 0).any())
    return None if starting and silent_s < THRESHOLDS.hang_certain_s else silent_s


def _still_before_its_end_s(job: JobData) -> float | None:
    """How long it made no step; None for a job that ended well, or whose end is unknown.

    The log does not measure it: what ends a job also writes to the log. A trainer that reports that it is
    done has ended, whatever comes after it.
    """
    if not _exit_code(job) or not len(job.steps):
        return None
    newest_s = float(job.steps.time_unix_s[-1])
    ends = [event.time_unix_ns / 1e9 for event in job.events if event.kind is EventKind.JOB_ENDED]
    return min((end_s - newest_s for end_s in ends if end_s >= newest_s), default=None)


def _exit_code(job: JobData) -> int | None:
    """As a launcher reported it: an end by missing processes, or by the trainer's own line, has none."""
    ends = (event for event in job.events if event.kind is EventKind.JOB_ENDED)
    codes = [event.values["exit_code"] for event in ends if "exit_code" in event.values]
    return int(codes[-1]) if codes and math.isfinite(codes[-1]) else None
