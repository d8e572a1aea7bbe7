"""When a job must not be profiled, and when a capture slows it: pure decisions over its log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from perfd.capture.expected_job_end import ExitOptions, Pace

_BASELINE_STEPS = 20
"""Newest steps before the capture, whose median is the usual step time. Chosen."""
_SLOW_LINES = 2
"""One slow step is the cost of starting a profiler."""
_SILENT_SHARE = 0.5
"""Share of the NCCL watchdog's timeout: a profiler's own pause must not exceed the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """A job's progress by its log; None for values that the log does not have."""

    step: int | None = None
    """The last step that was completed."""
    stepped_unix_s: float | None = None
    """When it was, by the log."""
    train_steps: int | None = None
    exit_options: ExitOptions = field(default_factory=ExitOptions)
    exit_unix_s: float | None = None
    """When the job exits by its own time limit."""
    limit_unix_s: float | None = None
    """When the scheduler ends the job at the latest."""
    step_times_s: Sequence[tuple[int, float]] = ()
    """The newest progress lines, oldest first: step and time per step, without warm-up."""
    steps_per_line: int = 1
    last_line_unix_ns: int | None = None
    checkpoint_interval_steps: int | None = None
    begun_checkpoint_step: int | None = None
    """The last step that the log reported as being saved."""
    last_checkpoint_step: int | None = None
    """The last step that the log reported as saved."""
    nccl_timeout_s: float | None = None
    """The job's own; perfd's configuration has the usual one."""

    @property
    def step_time_s(self) -> float | None:
        """The median of the newest steps."""
        times = [time_s for _, time_s in self.step_times_s[-_BASELINE_STEPS:]]
        return median(times) if times else None

    @property
    def pace(self) -> Pace:
        """The sources of its end."""
        return Pace(
            step=self.step,
            stepped_unix_s=self.stepped_unix_s,
            train_steps=self.train_steps,
            exit_interval_steps=self.exit_options.interval_steps,
            step_time_s=self.step_time_s,
            exit_unix_s=self.exit_unix_s,
            limit_unix_s=self.limit_unix_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """The operator's limits."""

    max_slowdown_ratio: float | None = 2.0
    """Stop a capture when steps take this many times as long as before it; None for never."""
    nccl_timeout_s: float = 600.0
    """PyTorch's default for NCCL process groups."""


def refusal(job: JobProgress, settings: GuardSettings, now_unix_ns: int) -> str:
    """Why a job must not be profiled now; otherwise empty."""
    if _saves(job):
        return f"The job saves a checkpoint after step {job.step}; try again when it is done."
    if job.last_line_unix_ns is None:
        return ""
    silent_s = (now_unix_ns - job.last_line_unix_ns) / 1e9
    timeout_s = job.nccl_timeout_s or settings.nccl_timeout_s
    usual_s = (job.step_time_s or 0.0) * job.steps_per_line
    if silent_s > _SILENT_SHARE * timeout_s + usual_s:
        return (
            f"The job's log has been silent for {silent_s:.0f} s and NCCL gives up after {timeout_s:.0f} s: "
            "it hangs, and a profiler could end it. Use py_spy or flight_recorder."
        )
    return ""


def _saves(job: JobProgress) -> bool:
    """Whether it saves a checkpoint, or should by now; a later step means that it has finished."""
    if not job.step or job.last_checkpoint_step == job.step:
        return False
    due = job.checkpoint_interval_steps is not None and job.step % job.checkpoint_interval_steps == 0
    return due or job.begun_checkpoint_step == job.step


def slowed(before: JobProgress, now: JobProgress, settings: GuardSettings) -> str:
    """How much a capture slows its job, if too much; otherwise empty."""
    usual_s = before.step_time_s
    if usual_s is None or settings.max_slowdown_ratio is None or before.step is None:
        return ""
    # A capture that an alert about longer steps started begins when steps are already long.
    usual_s = max(usual_s, min(time_s for _, time_s in before.step_times_s[-_SLOW_LINES:]))
    during = [time_s for step, time_s in now.step_times_s if step > before.step][-_SLOW_LINES:]
    if len(during) < _SLOW_LINES or min(during) <= settings.max_slowdown_ratio * usual_s:
        return ""
    return (
        f"The capture was stopped: steps took {min(during):.3g} s, and {usual_s:.3g} s before it "
        f"(capture.max_slowdown_ratio is {settings.max_slowdown_ratio:g})."
    )
