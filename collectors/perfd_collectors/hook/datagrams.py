"""Turns datagrams of `perfd.hook` into records; each is validated, since any process may send one."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from perfd.hook import FORMAT
from perfd.model import HOOK_MARK, JobDescription, ParallelLayout, PhaseTime, Record, StepPhases, TrainingStep

MAX_BYTES = 64 << 10
"""Largest datagram; a longer one is cut by the kernel and refused. Like the bounds below: chosen, so that
no valid message is refused and no sender can fill the agent's memory."""
_MAX_PHASES = 64
"""Phases per step."""
_MAX_NAME_CHARS = 64
"""Length of a phase's name."""
_MAX_JOB_CHARS = 256
"""Length of a job's name."""
_MAX_STEP = 1 << 53
"""Larger step numbers are not exact in a double."""
_MAX_RANK = 1 << 20
"""Ranks per job, and the size of each parallel dimension."""
_MAX_AMOUNT = 1e24
"""Samples, tokens and FLOPs of a step: a day of ten exaFLOP/s."""
_PRECISIONS = frozenset({"bf16", "fp16", "fp32", "tf32", "fp8", "fp4"})
_MAX_UNIX_NS = 1 << 62
"""Later times do not fit in 64 bits."""
_MAX_DURATION_S = 86_400.0
"""One day: longer steps and phases are garbage."""


class _Layout(msgspec.Struct):
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    vp: int | None = None


class HookMessage(msgspec.Struct, frozen=True):
    """One step of one rank. Unknown keys are ignored."""

    v: int
    rank: int
    step: int
    unix_ns: int
    step_s: float
    phases: dict[str, float] = {}
    job: str | None = None
    world_size: int | None = None
    layout: _Layout = msgspec.field(default_factory=_Layout)
    report_steps: bool = False
    precision: str | None = None
    samples: float | None = None
    tokens: float | None = None
    flops: float | None = None
    clock: str = "cuda"
    dropped: int = 0


_DECODER = msgspec.json.Decoder(HookMessage)


def parse_message(data: bytes) -> HookMessage | None:
    """The message of a datagram; None when it is truncated, of another format, or invalid."""
    try:
        message = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    sizes = [size for size in msgspec.structs.astuple(message.layout) if size is not None]
    sound = (
        message.v == FORMAT
        and 0 <= message.rank < (message.world_size or _MAX_RANK) <= _MAX_RANK
        and 0 <= message.step < _MAX_STEP
        and 0 < message.unix_ns < _MAX_UNIX_NS
        and _is_time(message.step_s)
        and len(message.phases) <= _MAX_PHASES
        and all(len(name) <= _MAX_NAME_CHARS and _is_time(time) for name, time in message.phases.items())
        and all(0 < size <= _MAX_RANK for size in sizes)
        and all(
            amount is None or 0 < amount < _MAX_AMOUNT
            for amount in (message.samples, message.tokens, message.flops)
        )
        and (message.precision is None or message.precision in _PRECISIONS)
        and (message.job is None or 0 < len(message.job) <= _MAX_JOB_CHARS)
    )
    return message if sound else None


def records_of(messages: Iterable[HookMessage], default_job: str) -> list[Record]:
    """One `StepPhases` per job and step over all reporting ranks; a `TrainingStep` where requested."""
    records: list[Record] = []
    blocks: dict[tuple[str, int], dict[str, dict[int, float]]] = {}
    for message in messages:
        job = message.job or default_job
        block = blocks.setdefault((job, message.step), {})
        for name, seconds in message.phases.items():
            block.setdefault(name, {})[message.rank] = seconds
        if message.report_steps and message.rank == 0:
            records.append(_step(message, job))
    records += [
        StepPhases(
            job=job,
            step=step,
            phases={name: PhaseTime(by_rank=by_rank) for name, by_rank in phases.items()},
        )
        for (job, step), phases in blocks.items()
        if phases
    ]
    return records


def description_of(message: HookMessage, default_job: str) -> JobDescription | None:
    """The job's description by the hook; None for a job that is described by its log."""
    layout = message.layout
    if not message.report_steps:
        return None
    return JobDescription(
        job=message.job or default_job,
        framework="perfd.hook",
        precision=message.precision,
        logged_flops_convention=None if message.flops is None else "perfd.hook",
        parallel=ParallelLayout(
            world_size=message.world_size,
            tp=layout.tp,
            pp=layout.pp,
            dp=layout.dp,
            cp=layout.cp,
            ep=layout.ep,
            vp=layout.vp,
        ),
    )


def _step(message: HookMessage, job: str) -> TrainingStep:
    return TrainingStep(
        job=job,
        step=message.step,
        time_unix_ns=message.unix_ns + round(message.step_s * 1e9),
        step_time_s=message.step_s or None,
        samples_per_s=_rate(message.samples, message.step_s),
        tokens_per_s=_rate(message.tokens, message.step_s),
        flops_per_s_per_gpu=_rate(message.flops, message.step_s),
        extras={HOOK_MARK: 1.0},
    )


def _rate(amount: float | None, step_s: float) -> float | None:
    return amount / step_s if amount is not None and step_s > 0 else None


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and 0 <= seconds <= _MAX_DURATION_S
