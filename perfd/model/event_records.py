"""Events, and the health of collectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from signal import SIGINT, SIGTERM

_LAST_SIGNAL = 64
"""SIGRTMAX on Linux. A higher code is the program's own, such as 255 for `exit(-1)`."""


class JobOutcome(StrEnum):
    """How a job ended, from least to most specific: a later one overrides an earlier one."""

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
        """Its position in this order."""
        return list(JobOutcome).index(self)

    @classmethod
    def of_exit_code(cls, code: int) -> JobOutcome:
        """The outcome for a shell's exit code, 128 + n for signal n; SIGINT and SIGTERM mean canceled."""
        if code == 0:
            return cls.COMPLETED
        if code in {128 + SIGINT, 128 + SIGTERM}:
            return cls.CANCELLED
        return cls.SIGNAL if 128 < code <= 128 + _LAST_SIGNAL else cls.FAILED

    @property
    def bad(self) -> bool:
        """Whether the job failed, rather than completed or was stopped by a user or the scheduler."""
        return self in _BAD


_BAD = {JobOutcome.FAILED, JobOutcome.SIGNAL, JobOutcome.OUT_OF_MEMORY, JobOutcome.NODE_FAILURE}


class EventKind(StrEnum):
    """The kind of an event; a closed list, so that rules can refer to them."""

    CHECKPOINT = "checkpoint"
    """A checkpoint was saved."""
    CHECKPOINT_STARTED = "checkpoint_started"
    """Saving a checkpoint started: ranks wait until it is saved, which resembles a hang."""
    EVALUATION = "evaluation"
    PROFILE = "profile"
    JOB_STARTED = "job_started"
    """As `restarted`."""
    JOB_ENDED = "job_ended"
    """`outcome` is set; `values` has `exit_code` and `signal` if known, and `deleted` where a pod was deleted
    and nothing says why."""
    RANKS_GONE = "ranks_gone"
    """The reporting node has no ranks of the job anymore; they may return, as with torchelastic."""
    RESTARTED = "restarted"
    """`values` has `new_process` where steps that follow are those of another process, surely."""
    RANKS_DOUBLED = "ranks_doubled"
    """Two processes at once have the same rank: two jobs run under one name. `values` has `ranks`, how many
    are doubled, and `on_same_gpus`, how many of these share their GPU; 0 `ranks` when that is over."""
    HARDWARE_ERROR = "hardware_error"
    """An XID, an ECC error or a lost GPU; `code` is the XID."""
    STRAGGLER_REPORT = "straggler_report"
    """The framework's own straggler report; `values` has its numbers."""
    NCCL_WARNING = "nccl_warning"
    NCCL_TIMES_WRONG = "nccl_times_wrong"
    """NCCL reports impossible GPU times for a rank; they are ignored."""
    DUMP_UNREADABLE = "dump_unreadable"
    """A rank's flight recorder dump cannot be read, so the rank's progress is unknown."""
    LOG_ERROR = "log_error"
    """A traceback, an out-of-memory error or a watchdog timeout in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of a job, a rank or a GPU."""

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
    """The result of one run of a collector."""

    collector: str
    time_unix_ns: int
    duration_s: float
    success: bool
    message: str = ""


def job_end(text: str, job: str | None, now_unix_ns: int) -> Event:
    """The event of `outcome=NAME exit_code=N`, of which either may be missing; other words are ignored.

    Without an outcome it follows from the exit code; 128 + n is signal n.
    """
    words = dict(word.split("=", 1) for word in text.split() if "=" in word)
    code = words.get("exit_code", "")
    values = {"exit_code": float(code)} if code.isascii() and code.isdigit() and len(code) < 10 else {}
    name = words.get("outcome", "")
    if name in set(JobOutcome):
        outcome = JobOutcome(name)
    else:
        outcome = JobOutcome.of_exit_code(int(code)) if values else JobOutcome.UNKNOWN
    exit_text = f" with exit code {code}" if values else ""
    return Event(
        kind=EventKind.JOB_ENDED,
        time_unix_ns=now_unix_ns,
        message=f"The job ended: {outcome.value.replace('_', ' ')}{exit_text}.",
        job=job,
        values=values,
        outcome=outcome,
    )
