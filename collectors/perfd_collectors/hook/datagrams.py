"""Datagrams of `perfd.hook` as records. Any process of the node may send one, so each is checked."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from perfd.hook import FORMAT
from perfd.model import JobDescription, ParallelLayout, PhaseTime, Record, StepPhases, TrainingStep

MAX_BYTES = 64 << 10
_MAX_PHASES = 64
_MAX_NAME = 64
_MAX_STEP = 1 << 53
_MAX_RANK = 1 << 20
_LONGEST_S = 86_400.0


class _Layout(msgspec.Struct):
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    vp: int | None = None


class HookMessage(msgspec.Struct, frozen=True):
    """One step of one rank. Keys that this version does not know are ignored."""

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
    clock: str = "cuda"
    dropped: int = 0


_DECODER = msgspec.json.Decoder(HookMessage)


def parse_message(data: bytes) -> HookMessage | None:
    """What a datagram tells, or None for one that is cut, of another format, or not sound."""
    try:
        message = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    sizes = [size for size in msgspec.structs.astuple(message.layout) if size is not None]
    sound = (
        message.v == FORMAT
        and 0 <= message.rank < (message.world_size or _MAX_RANK) <= _MAX_RANK
        and 0 <= message.step < _MAX_STEP
        and 0 < message.unix_ns < 1 << 62
        and _is_time(message.step_s)
        and len(message.phases) <= _MAX_PHASES
        and all(len(name) <= _MAX_NAME and _is_time(time) for name, time in message.phases.items())
        and all(0 < size <= _MAX_RANK for size in sizes)
        and (message.job is None or 0 < len(message.job) <= 256)
    )
    return message if sound else None


def records_of(messages: Iterable[HookMessage], default_job: str) -> list[Record]:
    """A block of phases for each job and step over the ranks that told of it; steps where asked for."""
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
    """What the hook was told of the job; None for a job whose log tells it."""
    layout = message.layout
    if not message.report_steps:
        return None
    return JobDescription(
        job=message.job or default_job,
        framework="perfd.hook",
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
        step_time_s=message.step_s,
    )


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and 0 <= seconds <= _LONGEST_S
