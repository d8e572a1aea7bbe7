"""What happened at an instant, and how collectors fare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class EventKind(StrEnum):
    """What happened. Kinds are a closed list so that rules can name them."""

    CHECKPOINT = "checkpoint"
    """It was saved."""
    CHECKPOINT_STARTED = "checkpoint_started"
    """Told by those that say so at once: until it is saved ranks wait, which looks like a hang."""
    EVALUATION = "evaluation"
    PROFILE = "profile"
    JOB_STARTED = "job_started"
    JOB_ENDED = "job_ended"
    RESTARTED = "restarted"
    HARDWARE_ERROR = "hardware_error"
    """An XID, an ECC error or a lost GPU; `code` is the XID."""
    STRAGGLER_REPORT = "straggler_report"
    """The framework's own straggler line; `values` holds its numbers."""
    NCCL_WARNING = "nccl_warning"
    NCCL_TIMES_WRONG = "nccl_times_wrong"
    """What NCCL tells of a rank's time on the GPU cannot be, and is left out."""
    DUMP_UNREADABLE = "dump_unreadable"
    """A rank's flight recorder has left a dump that cannot be read, so that it says nothing of the rank."""
    LOG_ERROR = "log_error"
    """A traceback, an out-of-memory error or a watchdog's message in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened at an instant, to a job, a rank or a GPU."""

    kind: EventKind
    time_unix_ns: int
    message: str
    job: str | None = None
    step: int | None = None
    rank: int | None = None
    gpu: int | None = None
    code: int | None = None
    duration_s: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorHealth:
    """The runner's verdict on one run of a collector."""

    collector: str
    time_unix_ns: int
    duration_s: float
    success: bool
    message: str = ""
