"""What a training log tells of steps, and how far it was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """One progress line of a training log. Times and rates are means over `steps_covered`."""

    job: str
    step: int
    time_unix_ns: int | None = None
    """When the line says it was printed, if it says so in a known time zone, else when it was read."""
    step_time_s: float | None = None
    steps_covered: int = 1
    warmup: bool = False
    """The average holds a first iteration after a start or resume, so no baseline may use it."""
    flops_per_s_per_gpu: float | None = None
    tokens_per_s: float | None = None
    """Of the whole job."""
    samples_per_s: float | None = None
    """Of the whole job."""
    global_batch_size: int | None = None
    consumed_samples: int | None = None
    consumed_tokens: int | None = None
    learning_rate: float | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    grad_norm: float | None = None
    loss_scale: float | None = None
    skipped_steps: int | None = None
    nan_steps: int | None = None
    energy_per_gpu_j: float | None = None
    power_per_gpu_w: float | None = None
    mfu_ratio: float | None = None
    """As printed by the job, by its own convention."""
    extras: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the line that perfd has no field for, by the key the line gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTime:
    """Time of one named phase, seconds per step; over ranks (`min`, `max`) or by rank."""

    min_s: float | None = None
    max_s: float | None = None
    by_rank: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPhases:
    """A block of phase timers, matched to the step that it belongs to."""

    job: str
    step: int
    phases: Mapping[str, PhaseTime]
    """By the timer's own name, unknown names too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Device memory of a rank by its own allocator, in bytes."""

    job: str
    step: int | None
    rank: int | None
    allocated_bytes: float | None = None
    max_allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    max_reserved_bytes: float | None = None
    device_used_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProgress:
    """How far a log was read: cumulative since the collector started."""

    job: str
    stream: str
    lines: int
    read_bytes: int
    unrecognised_lines: int
    last_line_unix_ns: int | None
    """When the newest line was read: a silent log is how a hang looks from outside."""
