"""When a running capture must end, and what its end means: pure decisions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from perfd.formatting import data_size
from perfd.model import CaptureRequest


class StopReason(Enum):
    """Why a capture was ended."""

    STEPS = "steps"
    """It has the requested steps."""
    TIME = "time"
    """The time limit, before the steps were complete or because steps are not visible."""
    JOB_ENDED = "job_ended"
    """The job's processes are gone; what was collected until then is kept."""
    TOO_LARGE = "too_large"
    """The size limit: deleted."""
    DISK = "disk"
    """Free space fell below the minimum: deleted."""
    COMPLETE = "complete"
    """The tool's own duration is over."""
    JOB_ENDS = "job_ends"
    """The job ends soon, and the report must be written before that."""
    SLOWED = "slowed"
    """The job became slow; what was collected until then is kept."""
    CANCELLED = "cancelled"
    """Canceled: deleted."""
    AGENT_STOPPED = "agent_stopped"
    """The agent ends, and nothing may stay running: deleted."""

    @property
    def spoils(self) -> bool:
        """Whether the result is not the requested capture."""
        return self in {StopReason.JOB_ENDED, StopReason.SLOWED}

    @property
    def keeps_files(self) -> bool:
        """Whether the capture's files are worth keeping."""
        return self not in {
            StopReason.TOO_LARGE,
            StopReason.DISK,
            StopReason.CANCELLED,
            StopReason.AGENT_STOPPED,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureProgress:
    """The progress of a running capture."""

    elapsed_s: float
    steps: int | None
    """Steps that ended since the start, including the one in progress at the start; None if not seen."""
    size_bytes: int
    room_bytes: int
    disk_full: bool
    alive: bool
    length_s: float | None = None
    """When the tool ends by itself; None if it does not."""
    slowed: str = ""
    """How the capture slows the job, if too much."""
    job_ends: str = ""
    """When the job ends, if that is so soon that the tool must stop now."""
    interruption: StopReason | None = None
    """A request from outside of the capture, if any."""


def ending(request: CaptureRequest, progress: CaptureProgress) -> StopReason | None:
    """Why the capture must end now; None while it may continue. What protects the node comes first."""
    if progress.interruption is not None:
        return progress.interruption
    checks = (
        (progress.disk_full, StopReason.DISK),
        (progress.size_bytes > progress.room_bytes, StopReason.TOO_LARGE),
        (not progress.alive, StopReason.JOB_ENDED),
        (bool(progress.slowed), StopReason.SLOWED),
        (progress.length_s is None and _steps_complete(request, progress), StopReason.STEPS),
        (progress.length_s is None and bool(progress.job_ends), StopReason.JOB_ENDS),
        (progress.length_s is not None and progress.elapsed_s >= progress.length_s, StopReason.COMPLETE),
        (progress.elapsed_s >= request.max_duration_s, StopReason.TIME),
    )
    return next((why for holds, why in checks if holds), None)


def _steps_complete(request: CaptureRequest, progress: CaptureProgress) -> bool:
    """The first step that ends was cut by the start and does not count: ranges open before it are absent."""
    return request.steps is not None and progress.steps is not None and progress.steps > request.steps


def note(request: CaptureRequest, why: StopReason, progress: CaptureProgress) -> str:
    """The note about an early end; otherwise empty."""
    if why is StopReason.TIME and request.steps is not None and progress.steps is not None:
        whole = max(0, progress.steps - 1)
        return f"Stopped at the limit of {request.max_duration_s:g} s after {whole} of {request.steps} steps."
    if why is StopReason.TIME and request.steps is not None:
        return f"No steps were seen in the job's log, so it ran for {request.max_duration_s:g} s."
    return {
        StopReason.JOB_ENDED: "The job ended during the capture.",
        StopReason.TOO_LARGE: f"The capture exceeded {data_size(progress.room_bytes)} and was deleted.",
        StopReason.JOB_ENDS: progress.job_ends,
        StopReason.SLOWED: progress.slowed,
        StopReason.DISK: "Free space fell below capture.min_free_bytes; the capture was deleted.",
    }.get(why, "")


def shortfall(asked: int | None, whole: int | None) -> str:
    """The note about a trace with fewer whole steps than requested; otherwise empty."""
    if asked is None or whole is None or whole >= asked:
        return ""
    return f"The trace contains only {whole} of the {asked} requested steps."
