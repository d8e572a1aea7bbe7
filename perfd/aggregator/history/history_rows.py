"""The rows of the history: how records become rows, and rows become records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import msgspec

from perfd.aggregator.state import AgentState, Durable
from perfd.model import (
    Alert,
    Event,
    GpuInfo,
    JobDescription,
    JobOrigin,
    PhaseTime,
    RankPlacement,
    ServerInfo,
    StepPhases,
    TrainingStep,
)
from perfd.rules.rule_model import EngineState

_K = TypeVar("_K", int, str)


class RowKind(Enum):
    """What a statement does; its values are in the order given here."""

    JOB = "job"
    """An attempt of a job sent something: job, attempt, started, received (Unix time in s)."""
    DESCRIPTION = "description"
    """Of an attempt that is there: description, job, attempt."""
    SUMMARY = "summary"
    """Of an attempt that is there: summary, job, attempt."""
    STEP = "step"
    """Replaces: job, attempt, then `STEP_COLUMNS`."""
    PHASES = "phases"
    """Replaces: job, attempt, step, time, phases."""
    EVENT = "event"
    """Once: job, attempt, node, time, kind, body."""
    FACT = "fact"
    """Replaces: node, kind, key, received, body."""
    AGENT = "agent"
    """The highest sequence and time, the newest rest: agent, node, sequence, received, epoch."""
    ALERT = "alert"
    """Replaces: job, name, labels, state, first step, started, changed, body."""
    ENGINE = "engine"
    """Replaces: body."""
    EXPORTER = "exporter"
    """Replaces: exporter, body."""
    CAPTURE = "capture"
    """Replaces: capture, requested, body."""
    NODE_MEMORY = "node_memory"
    """Replaces: node, kind, key, time, body."""
    RETENTION = "retention"
    """Replaces: the time that retention came to."""
    EXPIRED = "expired"
    """Deletes what is older: a time."""


STEP_COLUMNS = (
    "step, time_unix_s, step_time_s, steps_covered, warmup, flops_per_s_per_gpu, tokens_per_s, "
    "samples_per_s, global_batch_size, losses"
)
NODE_MEMORY_S = 120 * 86_400
"""How much longer than jobs the memory of nodes is kept: what they were blamed for fades by itself."""

_LEFT = "left "
"""Begins the stored epoch, a hash, of agents that said goodbye: tables have no column for that, and an
earlier perfd in the same group could not write to those that had one."""
_STATEMENT_BYTES = 400
"""Beside its texts."""

Statement = tuple[RowKind, tuple[Any, ...]]
"""What to do, and its values."""


def size_of(statement: Statement) -> int:
    """About what a statement takes in memory, and its row on disk at most, in bytes."""
    return _STATEMENT_BYTES + sum(len(one) for one in statement[1] if isinstance(one, (str, bytes)))


def without_replaced(statements: Sequence[Statement]) -> list[Statement]:
    """The statements of a transaction, without rows of agents that a later statement replaces."""
    newest: dict[str, tuple[int, float]] = {}
    kept: list[Statement] = []
    for statement in reversed(statements):
        kind, values = statement
        if kind is RowKind.AGENT:
            agent_id, _, sequence, unix_s, _ = values
            later = newest.get(agent_id)
            # A late batch, or one after the clock was set back, replaces nothing.
            if later is not None and sequence <= later[0] and unix_s <= later[1]:
                continue
            newest[agent_id] = sequence, unix_s
        kept.append(statement)
    kept.reverse()
    return kept


def job_rows(job: str, attempt: int, started_unix_s: float | None, now_unix_s: float) -> Iterator[Statement]:
    """The row of an attempt of a job, or the time at which it last sent."""
    yield RowKind.JOB, (job, attempt, started_unix_s, now_unix_s)


def rows(durable: Durable, now_unix_s: float) -> Iterator[Statement]:
    """What one record writes."""
    job, attempt, record = durable.job, durable.attempt, durable.record
    if isinstance(record, TrainingStep):
        yield RowKind.STEP, _step_row(durable, record)
    elif isinstance(record, StepPhases):
        body = {
            name: [phase.min_s, phase.max_s, _finite(phase.by_rank)] for name, phase in record.phases.items()
        }
        yield RowKind.PHASES, (job, attempt, record.step, durable.time_unix_s, _json(body))
    elif isinstance(record, JobDescription):
        yield RowKind.JOB, (job, attempt, durable.time_unix_s, now_unix_s)
        yield RowKind.DESCRIPTION, (_json(record), job, attempt)
    elif isinstance(record, Event):
        finite = dataclasses.replace(record, values=_finite(record.values))
        yield (
            RowKind.EVENT,
            (job, attempt, durable.node, record.time_unix_ns / 1e9, record.kind, _json(finite)),
        )
    elif isinstance(record, GpuInfo):
        yield RowKind.FACT, (durable.node, "gpu", str(record.index), now_unix_s, _json(record))
    elif isinstance(record, ServerInfo):
        yield RowKind.FACT, (durable.node, "server", record.server, now_unix_s, _json(record))
    elif isinstance(record, RankPlacement):
        yield RowKind.FACT, (durable.node, "rank", f"{record.job}/{record.rank}", now_unix_s, _json(record))
    elif isinstance(record, JobOrigin):
        yield RowKind.FACT, (durable.node, "origin", job, now_unix_s, _json(record))


def agent_row(agent: AgentState, sequence: int, now_unix_s: float) -> Statement:
    """How far an agent's batches are stored, which spool it has, and whether it said goodbye."""
    epoch = f"{_LEFT}{agent.epoch}" if agent.left else agent.epoch
    return RowKind.AGENT, (agent.agent_id, agent.node, sequence, now_unix_s, epoch)


def epoch_of(stored: str) -> tuple[str, bool]:
    """An agent's epoch as it was, and whether the agent had said goodbye."""
    return stored.removeprefix(_LEFT), stored.startswith(_LEFT)


def summary_row(job: str, attempt: int, summary: Mapping[str, Any]) -> Statement:
    """The newest derived summary of an attempt of a job."""
    return RowKind.SUMMARY, (_json(summary), job, attempt)


def alert_row(alert: Alert, now_unix_s: float) -> Statement:
    """An alert that fired and the state it is in; the columns are for people, the body is all of it."""
    labels = _json(dict(sorted(alert.labels.items())))
    columns = (
        alert.job,
        alert.name,
        labels,
        alert.state,
        alert.first_step,
        alert.fired_at_unix_s,
        now_unix_s,
    )
    return RowKind.ALERT, (*columns, _packed(alert))


def engine_row(state: EngineState) -> Statement:
    """What the rule engine of a later process goes on from."""
    return RowKind.ENGINE, (_packed(state),)


def exporter_row(exporter: str, body: bytes) -> Statement:
    """What an exporter of a later process goes on from."""
    return RowKind.EXPORTER, (exporter, body)


def capture_row(capture_id: str, requested_unix_s: float, body: bytes) -> Statement:
    """A capture as it stands."""
    return RowKind.CAPTURE, (capture_id, requested_unix_s, body.decode())


def node_memory_row(node: str, kind: str, key: str, unix_s: float, body: object) -> Statement:
    """What is remembered of a node: the `node` itself, an `incident` or a `drain`."""
    return RowKind.NODE_MEMORY, (node, kind, key, unix_s, _json(body))


def retention_row(unix_s: float) -> Statement:
    """The time by which what is old was deleted last."""
    return RowKind.RETENTION, (unix_s,)


def expired_row(before_unix_s: float) -> Statement:
    """Delete what is older than a time."""
    return RowKind.EXPIRED, (before_unix_s,)


def step_of(job: str, row: tuple[Any, ...]) -> TrainingStep:
    """The progress line of a row of `steps`, from its third column on."""
    step, time_unix_s, step_time_s, covered, warmup, flops, tokens, samples, batch, losses = row
    return TrainingStep(
        job=job,
        step=step,
        time_unix_ns=None if time_unix_s is None else round(time_unix_s * 1e9),
        step_time_s=step_time_s,
        steps_covered=covered,
        warmup=bool(warmup),
        flops_per_s_per_gpu=flops,
        tokens_per_s=tokens,
        samples_per_s=samples,
        global_batch_size=batch,
        losses={
            name: math.nan if value is None else value for name, value in msgspec.json.decode(losses).items()
        },
    )


def phases_of(job: str, step: int, body: str) -> StepPhases:
    """The block of timers of a row of `phases`."""
    return StepPhases(
        job=job,
        step=step,
        phases={
            name: PhaseTime(
                min_s=least, max_s=greatest, by_rank={int(rank): value for rank, value in by_rank.items()}
            )
            for name, (least, greatest, by_rank) in msgspec.json.decode(body).items()
        },
    )


def _step_row(durable: Durable, line: TrainingStep) -> tuple[Any, ...]:
    return (
        durable.job,
        durable.attempt,
        line.step,
        durable.time_unix_s if line.time_unix_ns is None else line.time_unix_ns / 1e9,
        line.step_time_s,
        line.steps_covered,
        int(line.warmup),
        line.flops_per_s_per_gpu,
        line.tokens_per_s,
        line.samples_per_s,
        _storable(line.global_batch_size),
        _json(dict(line.losses)),
    )


def _storable(number: int | None) -> int | None:
    """Integers of databases have 64 bits with a sign; what is larger is garbage."""
    return None if number is None or number >= 1 << 63 else number


def _finite(values: Mapping[_K, float]) -> dict[_K, float]:
    return {key: value for key, value in values.items() if math.isfinite(value)}


def _packed(value: object) -> bytes:
    # The value of an alert may be NaN or infinite, which JSON cannot hold.
    return msgspec.msgpack.encode(value)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
