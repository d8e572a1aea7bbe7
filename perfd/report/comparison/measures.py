"""What can be compared between two runs: the numbers of a summary or of a capture, with their direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from perfd.analysis.diagnosis import JobSummary
from perfd.errors import PerfdError
from perfd.formatting import kind_of_source
from perfd.report.comparison.run_settings import RunSettings, settings_of


class Better(StrEnum):
    """Which way a number improves."""

    LOWER = "lower"
    HIGHER = "higher"


class Unit(StrEnum):
    """What a number is."""

    SECONDS = "s"
    RATIO = "ratio"
    PER_SECOND = "1/s"
    COUNT = "count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One number of one run; None for unknown."""

    name: str
    value: float | None
    unit: Unit
    better: Better | None = None
    """None for what explains a change and is by itself neither good nor bad."""
    gate: bool = False
    """Whether a regression of it fails the comparison. The others explain."""
    source: str = ""
    """Its source, if there are several: timers see another part than NCCL's kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One run."""

    name: str
    kind: str
    """`summary` or `trace`: only like can be compared with like."""
    measures: Sequence[Measure]
    capture: str = ""
    """Of a summary: the capture that its kernels are from; empty for none."""
    kernels_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds a step by kernel, as a mean over ranks."""
    kernel_counts: Mapping[str, float] = field(default_factory=dict)
    """How often each of them runs in a step, as a mean over ranks."""
    settings: RunSettings = field(default_factory=dict)
    """What it ran with, by area; empty for a trace."""


class _Step(msgspec.Struct):
    span_s: float
    compute_s: float
    communication_s: float
    exposed_communication_s: float | None
    exposed_memory_s: float | None
    idle_s: float | None
    kernel_count: int


class _Kernel(msgspec.Struct):
    name: str
    total_s: float
    count: int = 0


class _Rank(msgspec.Struct):
    steps: list[_Step]
    kernels: list[_Kernel]
    complete: bool = True


class _ModelUse(msgspec.Struct):
    mfu_ratio: float


class _Trace(msgspec.Struct):
    ranks: list[_Rank]
    model_use: _ModelUse | None = None


def measures_of_summary(job: JobSummary, name: str) -> MeasuredRun:
    """A job's numbers that show whether it got better or worse.

    What takes a part of a step is compared in seconds: the same part of a longer step is a smaller share.
    """
    step_s = job.step_time_s.median
    rows = (
        ("step_time_s", job.step_time_s.median, Unit.SECONDS, Better.LOWER, True),
        ("tokens_per_s", job.efficiency.tokens_per_s, Unit.PER_SECOND, Better.HIGHER, True),
        ("mfu_ratio", job.efficiency.mfu_ratio, Unit.RATIO, Better.HIGHER, True),
        ("step_time_p95_s", job.step_time_s.p95, Unit.SECONDS, Better.LOWER, False),
        ("step_time_jitter_ratio", job.step_time_s.jitter_ratio, Unit.RATIO, None, False),
        ("pipeline_stall_ratio", job.pipeline.stall_ratio, Unit.RATIO, None, False),
        ("tensor_active_ratio", job.efficiency.tensor_active_ratio, Unit.RATIO, None, False),
        ("memory_used_ratio", job.memory.max_used_ratio, Unit.RATIO, None, False),
    )
    parts = (
        ("communication_s", job.communication.share_ratio, job.communication.source),
        ("data_loading_s", job.data.share_ratio, job.data.source),
        ("optimizer_s", job.optimizer.share_ratio, job.optimizer.source),
        ("forward_s", job.breakdown.forward_ratio, "timers"),
        ("backward_s", job.breakdown.backward_ratio, "timers"),
        ("outside_timers_s", job.breakdown.unattributed_ratio, "timers"),
    )
    measures = [_measure(*row) for row in rows] + [_part(*part, step_s) for part in parts]
    return MeasuredRun(name=name, kind="summary", measures=measures, settings=settings_of(job))


def measures_of_trace(document: Mapping[str, Any], name: str) -> MeasuredRun:
    """A capture's numbers, from perfd.trace/2: each a mean over the steps and ranks.

    Ranks that lost records are left out. Without steps there is no time of a step to gate on.
    Raises `PerfdError`, naming `name`, when the document is not as perfd writes it.
    """
    try:
        trace = msgspec.convert(document, _Trace)
    except msgspec.ValidationError as error:
        raise PerfdError(f"{name}: the analysis is not as perfd writes it: {error}.") from error
    ranks = [rank for rank in trace.ranks if rank.complete]
    steps = [step for rank in ranks for step in rank.steps]
    kernels: dict[str, float] = {}
    counts: dict[str, float] = {}
    for rank in ranks:
        for row in rank.kernels if steps else ():
            share = row.total_s / max(1, len(rank.steps)) / len(ranks)
            kernels[row.name] = kernels.get(row.name, 0.0) + share
            often = row.count / max(1, len(rank.steps)) / len(ranks)
            counts[row.name] = counts.get(row.name, 0.0) + often
    mfu = trace.model_use.mfu_ratio if trace.model_use else None
    seconds = ("compute_s", "communication_s", "exposed_communication_s", "exposed_memory_s", "idle_s")
    rows = (
        ("step_time_s", _mean(steps, "span_s"), Unit.SECONDS, Better.LOWER, True),
        ("mfu_ratio", mfu, Unit.RATIO, Better.HIGHER, True),
        *((key, _mean(steps, key), Unit.SECONDS, Better.LOWER, False) for key in seconds),
        ("kernel_count", _mean(steps, "kernel_count"), Unit.COUNT, None, False),
    )
    return MeasuredRun(
        name=name,
        kind="trace",
        measures=[_measure(*row) for row in rows],
        kernels_s=kernels,
        kernel_counts=counts,
    )


def _mean(steps: Sequence[_Step], key: str) -> float | None:
    values: list[float | None] = [getattr(step, key) for step in steps]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _part(name: str, share_ratio: float | None, source: str | None, step_s: float | None) -> Measure:
    return Measure(
        name=name,
        value=None if share_ratio is None or step_s is None else share_ratio * step_s,
        unit=Unit.SECONDS,
        better=Better.LOWER,
        source=kind_of_source(source),
    )


def _measure(name: str, value: float | None, unit: Unit, better: Better | None, gate: bool) -> Measure:
    return Measure(name=name, value=value, unit=unit, better=better, gate=gate)
