"""What a capture of a job says of the job as it is now: its evidence, or why it is none."""

from __future__ import annotations

from dataclasses import dataclass

from perfd.analysis.data.job_data import Captured, JobData
from perfd.model import TraceShares

_LONGEST_AGE_S = 6 * 3600.0
"""An older capture does not show how the job runs now. Chosen."""
_SAME = 0.1
"""A share of communication that differs by less from that of a capture is the same."""
_STEP_TOLERANCE = 0.15
"""Profilers make steps a few percent longer; a job whose pace changed by more does something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureEvidence:
    """The newest capture of a job whose traces were read."""

    capture: str
    age_s: float
    """Since it ended."""
    used: bool
    """Whether it stands for the job as it is now."""
    reason: str | None = None
    """Why it does not, as half a sentence."""
    step_time_s: float | None = None
    """How long steps took meanwhile: by the log, else by the traces."""
    added_ratio: float = 0.0
    """How much longer than now, which may be the profiler's doing; relative to the current step."""
    shares: TraceShares

    @property
    def source(self) -> str:
        """Where its numbers are from, in words."""
        return f"capture {self.capture}, {_duration(self.age_s)} ago"

    def of_now(self, ratio: float) -> float:
        """A share of the captured steps by the time of a step as it is now."""
        return ratio * (1 + self.added_ratio)

    def exposed_now(self, then: float, exposed: float, now: float) -> tuple[float, str]:
        """The exposed part of communication that takes the share `now`, and where that is from, in words.

        As large a part of it is taken to be exposed as of the share `then`, of which `exposed` was.
        """
        scale = now / then
        scaled = f"{self.source}, scaled: communication took {100 * then:.1f}% then"
        return exposed * scale, scaled if abs(scale - 1) > _SAME else self.source

    def launch_ratio(self) -> float:
        """The share of a step in which the host had not launched, at least: profilers hold the host up."""
        return max(0.0, self.of_now(self.shares.launch_ratio) - self.added_ratio)


def capture_evidence(job: JobData, step_time_s: float | None) -> CaptureEvidence | None:
    """What the newest capture that was read says; None when there is none.

    It stands for now when it is of this start of the job, which has one layout and one set of ranks, at most
    six hours old, and steps took as long as they take now, by 15% at most.
    """
    captured = job.captured
    if captured is None:
        return None
    now_unix_s = job.now_unix_s if job.ended_unix_s is None else job.ended_unix_s
    age_s = max(0.0, now_unix_s - captured.end_unix_s)
    then_s = captured.step_time_s or captured.shares.step_time_s
    reason = _why_not(job, captured, age_s, then_s, step_time_s)
    return CaptureEvidence(
        capture=captured.capture_id,
        age_s=age_s,
        used=reason is None,
        reason=reason,
        step_time_s=then_s,
        added_ratio=max(0.0, then_s / step_time_s - 1) if then_s and step_time_s else 0.0,
        shares=captured.shares,
    )


def not_used(capture: CaptureEvidence | None) -> tuple[str, ...]:
    """A sentence on why the evidence of a capture is left out; nothing when it is used, or there is none."""
    if capture is None or capture.used:
        return ()
    return (f"The newest analyzed capture, {capture.capture}, is not used: {capture.reason}.",)


def _why_not(
    job: JobData, captured: Captured, age_s: float, then_s: float | None, now_s: float | None
) -> str | None:
    if captured.start_unix_s < (job.run_began_unix_s or 0.0):
        return "the job started again since"
    if age_s > _LONGEST_AGE_S:
        return f"it is {_duration(age_s)} old"
    if not then_s or not now_s:
        return f"how long steps {'take now' if then_s else 'took meanwhile'} is not known"
    if abs(then_s / now_s - 1) > _STEP_TOLERANCE:
        return f"steps took {1000 * then_s:.1f} ms meanwhile and take {1000 * now_s:.1f} ms now"
    return None


def _duration(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"
