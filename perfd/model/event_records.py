"""What happened at an instant, and how collectors fare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from signal import SIGINT, SIGTERM


class JobOutcome(StrEnum):
    """How a job ended, in the order of how much each says: a later one overrides an earlier one."""

    UNKNOWN = "unknown"
    """Its ranks are gone, or all its agents have left."""
    COMPLETED = "completed"
    FAILED = "failed"
    """It ended with an exit code other than 0."""
    SIGNAL = "signal"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_FAILURE = "node_failure"

    @property
    def weight(self) -> int:
        """Its place in this order."""
        return list(JobOutcome).index(self)

    @classmethod
    def of_exit_code(cls, code: int) -> JobOutcome:
        """By a shell's exit code, 128 + n for signal n; SIGINT and SIGTERM are how somebody stops a job."""
        if code == 0:
            return cls.COMPLETED
        if code in {128 + SIGINT, 128 + SIGTERM}:
            return cls.CANCELLED
        return cls.SIGNAL if code > 128 else cls.FAILED

    @property
    def bad(self) -> bool:
        """Whether the job broke, rather than was done, or was stopped by a person or the scheduler."""
        return self in _BAD


_BAD = {JobOutcome.FAILED, JobOutcome.SIGNAL, JobOutcome.OUT_OF_MEMORY, JobOutcome.NODE_FAILURE}


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
    """`outcome` is how, `values` has `exit_code` and `signal` where they are known."""
    RANKS_GONE = "ranks_gone"
    """No rank of the job is left on the node that says it; they may come back, as torchelastic's do."""
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
    outcome: JobOutcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorHealth:
    """The runner's verdict on one run of a collector."""

    collector: str
    time_unix_ns: int
    duration_s: float
    success: bool
    message: str = ""
