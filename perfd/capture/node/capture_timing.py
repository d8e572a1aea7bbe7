"""When a capture on a node begins, and whether that is too late for it or for its job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perfd.capture.expected_job_end import (
    MARGIN_S,
    ExpectedEnd,
    ends_now,
    job_end,
    needed_s,
    too_late,
    window_s,
)
from perfd.capture.node.artifact_sharing import Sharing
from perfd.capture.node.capture_storage import CaptureStore
from perfd.capture.node.capture_tool import Tool
from perfd.capture.node.job_guards import GuardSettings, JobProgress, refusal
from perfd.capture.node.stop_conditions import StopReason
from perfd.clock import Clock
from perfd.errors import CaptureError
from perfd.model import CaptureRequest, CaptureState, CaptureStatus

LATE_AFTER_S = 1.0
"""A start later than this would not be together with the other nodes."""
MAX_LEAD_S = 120.0
"""A start further ahead means that the clocks of the nodes differ."""
POLL_S = 0.2
"""How late a change, such as the job's end, is noticed while a capture waits for its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """A request from outside to end the capture."""

    why: StopReason
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The parts of the agent that a capture uses."""

    store: CaptureStore
    clock: Clock
    send_status: Callable[[CaptureStatus], None]
    progress: Callable[[str], JobProgress]
    guards: GuardSettings
    interruption: Callable[[], Interruption | None]
    wait: Callable[[float], None]
    """Wait this many seconds, or less if there is an interruption."""
    sharing: Sharing | None = None
    """The shared folder for copies; None: nothing leaves the node."""


class CaptureTiming:
    """Waits for the start of one capture with one tool, and watches how near the job's end is."""

    def __init__(self, request: CaptureRequest, tool: Tool, around: RunContext) -> None:
        self._request = request
        self._tool = tool
        self._around = around

    def check_job(self) -> None:
        """Raise `CaptureError` when the job is in no state to be captured, or ends too soon."""
        job = self._around.progress(self._request.job)
        if self._tool.for_hangs:
            return
        reason = refusal(job, self._around.guards, self._around.clock.unix_ns())
        if reason := reason or self._too_late(job, self._lead_s()):
            raise CaptureError(reason)

    def _lead_s(self) -> float:
        """The time from now until the tool collects."""
        start_unix_ns = self._request.start_unix_ns
        ahead_s = (start_unix_ns - self._around.clock.unix_ns()) / 1e9 if start_unix_ns is not None else 0.0
        return max(self._tool.lead_s, ahead_s)

    def _too_late(self, job: JobProgress, lead_s: float, margin_s: float = MARGIN_S) -> str:
        """Why the capture does not fit before the job's end; otherwise empty."""
        step_time_s = job.step_time_s or self._request.step_time_s
        length_s = window_s(self._request.steps, step_time_s, self._request.max_duration_s)
        needed = needed_s(self._tool.kind, lead_s=lead_s, window_s=length_s, margin_s=margin_s)
        return too_late(self._job_end(job), self._tool.kind, needed)

    def job_ends_now(self, job: JobProgress) -> str:
        """Why the tool must stop now to be done before the job's end; empty while it need not."""
        return ends_now(self._job_end(job), self._tool.kind)

    def _job_end(self, job: JobProgress) -> ExpectedEnd | None:
        return job_end(job.pace, self._around.clock.unix_ns() / 1e9)

    def wait_for_start(self) -> tuple[CaptureState, str] | None:
        """Wait until the tool should start; returns the outcome if that is impossible."""
        start_unix_ns = self._request.start_unix_ns
        if start_unix_ns is None:
            interruption = self._around.interruption()
            return (CaptureState.FAILED, interruption.reason) if interruption else None
        ahead_s = (start_unix_ns - self._around.clock.unix_ns()) / 1e9
        if ahead_s < -LATE_AFTER_S:
            return CaptureState.LATE, f"The request came {-ahead_s:.1f} s after the agreed start."
        if ahead_s > MAX_LEAD_S:
            reason = f"The agreed start is {ahead_s:.0f} s ahead; compare the clocks of the nodes."
            return CaptureState.REFUSED, reason
        interruption = self._wait_until(start_unix_ns - round(self._tool.lead_s * 1e9))
        return (CaptureState.FAILED, interruption.reason) if interruption else None

    def wait_for_window(self, start_unix_ns: int) -> Interruption | None:
        """Wait until a tool with its orders begins to collect; returns an interruption, if any.

        The job's end coming nearer is one, too: orders not fetched by a process yet can be withdrawn.
        """

        def too_late(left_s: float) -> Interruption | None:
            reason = self._too_late(self._around.progress(self._request.job), left_s, margin_s=0.0)
            return Interruption(why=StopReason.JOB_ENDS, reason=reason) if reason else None

        return self._wait_until(start_unix_ns, too_late)

    def _wait_until(
        self, unix_ns: int, too_late: Callable[[float], Interruption | None] = lambda _: None
    ) -> Interruption | None:
        """Wait for a moment; returns an interruption, if any. `too_late` gets the time left."""
        while (interruption := self._around.interruption()) is None:
            left_s = (unix_ns - self._around.clock.unix_ns()) / 1e9
            if left_s <= 0:
                return None
            if (interruption := too_late(left_s)) is not None:
                return interruption
            self._around.wait(min(left_s, POLL_S))
        return interruption
