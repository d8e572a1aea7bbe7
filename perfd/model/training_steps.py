"""Records of training logs: steps, phases, memory, and reading progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class StepSource(StrEnum):
    """What shows the steps of a job."""

    LOG = "log"
    """Progress lines, or the hook."""
    ARRIVAL = "arrival"
    """Progress lines without times; when they came shows the pace."""
    NCCL = "nccl"
    """Its operations repeat; they may be something else (`StepDoubt`)."""


class StepDoubt(StrEnum):
    """What a step by NCCL's operations may be instead."""

    MICRO_BATCHES = "micro-batch"
    """One of several parts of a step, as when gradients are reduced in each micro-batch."""
    ROUNDS = "round of steps"
    """Several steps, after which parameters are averaged; else one whose gradients are reduced at its end."""


def one_step(doubt: StepDoubt | None) -> str:
    """What is counted as a step, in words."""
    return "step" if doubt is None else f"step or {doubt}"


def several_steps(doubt: StepDoubt | None) -> str:
    """The same of several."""
    return "steps" if doubt is None else f"steps or {_SEVERAL[doubt]}"


_SEVERAL = {StepDoubt.MICRO_BATCHES: "micro-batches", StepDoubt.ROUNDS: "rounds of steps"}


HOOK_MARK = "perfd.hook"
"""The key in `TrainingStep.extras` that says that the job's own process reported the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """One progress line of a training log. Times and rates are means over `steps_covered`."""

    job: str
    step: int
    time_unix_ns: int | None = None
    """The printed time, if its time zone is known, else the time of reading."""
    step_time_s: float | None = None
    steps_covered: int = 1
    warmup: bool = False
    """The average includes the first iteration after a start or resume: not for baselines."""
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
    """As printed by the job, in its own convention."""
    extras: Mapping[str, float] = field(default_factory=dict)
    """Other numbers of the line, by their printed keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTime:
    """Time of a phase in seconds per step: minimum and maximum over ranks, or by rank."""

    min_s: float | None = None
    max_s: float | None = None
    by_rank: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPhases:
    """A step's phase timers."""

    job: str
    step: int
    phases: Mapping[str, PhaseTime]
    """By the timer's printed name, including unknown ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """A rank's device memory in bytes, as reported by its allocator."""

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
    """Reading progress of a log, cumulative since the collector started."""

    job: str
    stream: str
    lines: int
    read_bytes: int
    unrecognized_lines: int
    last_line_unix_ns: int | None
    """When the newest line was read; a silent log may indicate a hang."""
    times_are_exact: bool = False
    """Whether lines have the time at which they were written, and not at which they were read."""
