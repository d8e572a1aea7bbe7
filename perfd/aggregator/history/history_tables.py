"""The tables of the history, and how records become rows and rows become records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
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

SCHEMA_VERSION = 6
"""`PRAGMA user_version` of the file. A later version adds tables and columns, and migrates."""

MIGRATIONS = {
    1: "ALTER TABLE alerts ADD COLUMN body BLOB",
    2: "CREATE TABLE IF NOT EXISTS retention (id INTEGER PRIMARY KEY CHECK (id = 1), unix_s REAL NOT NULL)",
    3: "ALTER TABLE agents ADD COLUMN epoch TEXT NOT NULL DEFAULT ''",
    4: (
        "CREATE TABLE IF NOT EXISTS node_memory (node TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, "
        "unix_s REAL NOT NULL, body TEXT NOT NULL, PRIMARY KEY (node, kind, key)) WITHOUT ROWID"
    ),
    5: "CREATE TABLE IF NOT EXISTS exporters (exporter TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID",
}
"""From each version to the next."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
  job TEXT NOT NULL, attempt INTEGER NOT NULL, started_unix_s REAL, received_unix_s REAL NOT NULL,
  description TEXT, summary TEXT, PRIMARY KEY (job, attempt)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS steps (
  job TEXT NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL, time_unix_s REAL, step_time_s REAL,
  steps_covered INTEGER NOT NULL, warmup INTEGER NOT NULL, flops_per_s_per_gpu REAL, tokens_per_s REAL,
  samples_per_s REAL, global_batch_size INTEGER, losses TEXT NOT NULL,
  PRIMARY KEY (job, attempt, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS phases (
  job TEXT NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL, time_unix_s REAL NOT NULL,
  phases TEXT NOT NULL, PRIMARY KEY (job, attempt, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
  job TEXT NOT NULL, attempt INTEGER NOT NULL, node TEXT NOT NULL, time_unix_s REAL NOT NULL,
  kind TEXT NOT NULL, body TEXT NOT NULL, UNIQUE (job, node, time_unix_s, kind, body));
CREATE TABLE IF NOT EXISTS alerts (
  job TEXT NOT NULL, name TEXT NOT NULL, labels TEXT NOT NULL, state TEXT NOT NULL, first_step INTEGER,
  started_unix_s REAL NOT NULL, changed_unix_s REAL NOT NULL, body BLOB,
  PRIMARY KEY (name, labels, started_unix_s)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS engine (
  id INTEGER PRIMARY KEY CHECK (id = 1), body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS exporters (
  exporter TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS retention (
  id INTEGER PRIMARY KEY CHECK (id = 1), unix_s REAL NOT NULL);
CREATE TABLE IF NOT EXISTS node_facts (
  node TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, received_unix_s REAL NOT NULL,
  body TEXT NOT NULL, PRIMARY KEY (node, kind, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS node_memory (
  node TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, unix_s REAL NOT NULL, body TEXT NOT NULL,
  PRIMARY KEY (node, kind, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS agents (
  agent_id TEXT PRIMARY KEY, node TEXT NOT NULL, last_sequence INTEGER NOT NULL,
  received_unix_s REAL NOT NULL, epoch TEXT NOT NULL DEFAULT '') WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS captures (
  capture_id TEXT PRIMARY KEY, requested_unix_s REAL NOT NULL, body TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS events_by_job ON events (job, attempt, time_unix_s);
"""

_NODE_MEMORY_S = 120 * 86_400
"""How much longer than jobs it is kept."""

EXPIRED = (
    "DELETE FROM steps WHERE (job, attempt) IN (SELECT job, attempt FROM jobs WHERE received_unix_s < ?1)",
    "DELETE FROM phases WHERE time_unix_s < ?1",
    "DELETE FROM events WHERE time_unix_s < ?1",
    "DELETE FROM alerts WHERE changed_unix_s < ?1",
    "DELETE FROM captures WHERE requested_unix_s < ?1",
    "DELETE FROM node_facts WHERE received_unix_s < ?1",
    # What nodes were blamed for fades by itself; its ledger forgets it.
    f"DELETE FROM node_memory WHERE unix_s < ?1 - {_NODE_MEMORY_S}",  # noqa: S608  (a constant)
    "DELETE FROM agents WHERE received_unix_s < ?1",
    "DELETE FROM jobs WHERE received_unix_s < ?1",
)
"""What is older than a time leaves by these, in this order."""

_JOB = (
    "INSERT INTO jobs (job, attempt, started_unix_s, received_unix_s) VALUES (?, ?, ?, ?) "
    # A clock that is set back for a moment makes no job old.
    "ON CONFLICT DO UPDATE SET received_unix_s = max(received_unix_s, excluded.received_unix_s)"
)
_DESCRIPTION = "UPDATE jobs SET description = ? WHERE job = ? AND attempt = ?"
_SUMMARY = "UPDATE jobs SET summary = ? WHERE job = ? AND attempt = ?"
_STEP = "INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PHASES = "INSERT OR REPLACE INTO phases VALUES (?, ?, ?, ?, ?)"
_EVENT = "INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?, ?)"
_FACT = "INSERT OR REPLACE INTO node_facts VALUES (?, ?, ?, ?, ?)"
_AGENT = (
    "INSERT INTO agents VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET node = excluded.node, "
    "last_sequence = max(last_sequence, excluded.last_sequence), "
    "received_unix_s = max(received_unix_s, excluded.received_unix_s), epoch = excluded.epoch"
)
_AGENT_LEFT = "DELETE FROM agents WHERE agent_id = ?"
_ALERT = "INSERT OR REPLACE INTO alerts VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_ENGINE = "INSERT OR REPLACE INTO engine VALUES (1, ?)"
_EXPORTER = "INSERT OR REPLACE INTO exporters VALUES (?, ?)"
_CAPTURE = "INSERT OR REPLACE INTO captures VALUES (?, ?, ?)"
_NODE_MEMORY = "INSERT OR REPLACE INTO node_memory VALUES (?, ?, ?, ?, ?)"
_RETENTION = "INSERT OR REPLACE INTO retention VALUES (1, ?)"

_STATEMENT_BYTES = 400
"""Beside its texts."""

Statement = tuple[str, tuple[Any, ...]]
"""SQL and its parameters."""


def size_of(statement: Statement) -> int:
    """About what a statement takes in memory, and its row on disk at most, in bytes."""
    return _STATEMENT_BYTES + sum(len(one) for one in statement[1] if isinstance(one, (str, bytes)))


def without_replaced(statements: Sequence[Statement]) -> list[Statement]:
    """The statements of a transaction, without rows of agents that a later statement replaces."""
    newest: dict[str, tuple[int, float]] = {}
    kept: list[Statement] = []
    for statement in reversed(statements):
        sql, parameters = statement
        if sql is _AGENT:
            agent_id, _, sequence, unix_s, _ = parameters
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
    yield _JOB, (job, attempt, started_unix_s, now_unix_s)


def rows(durable: Durable, now_unix_s: float) -> Iterator[Statement]:
    """What one record writes."""
    job, attempt, record = durable.job, durable.attempt, durable.record
    if isinstance(record, TrainingStep):
        yield _STEP, _step_row(durable, record)
    elif isinstance(record, StepPhases):
        body = {
            name: [phase.min_s, phase.max_s, _finite(phase.by_rank)] for name, phase in record.phases.items()
        }
        yield _PHASES, (job, attempt, record.step, durable.time_unix_s, _json(body))
    elif isinstance(record, JobDescription):
        yield _JOB, (job, attempt, durable.time_unix_s, now_unix_s)
        yield _DESCRIPTION, (_json(record), job, attempt)
    elif isinstance(record, Event):
        finite = dataclasses.replace(record, values=_finite(record.values))
        yield _EVENT, (job, attempt, durable.node, record.time_unix_ns / 1e9, record.kind, _json(finite))
    elif isinstance(record, GpuInfo):
        yield _FACT, (durable.node, "gpu", str(record.index), now_unix_s, _json(record))
    elif isinstance(record, ServerInfo):
        yield _FACT, (durable.node, "server", record.server, now_unix_s, _json(record))
    elif isinstance(record, RankPlacement):
        yield _FACT, (durable.node, "rank", f"{record.job}/{record.rank}", now_unix_s, _json(record))
    elif isinstance(record, JobOrigin):
        yield _FACT, (durable.node, "origin", job, now_unix_s, _json(record))


def agent_row(agent: AgentState, sequence: int, now_unix_s: float) -> Statement:
    """How far an agent's batches are stored, and which spool it has."""
    return _AGENT, (agent.agent_id, agent.node, sequence, now_unix_s, agent.epoch)


def agent_left_row(agent_id: str) -> Statement:
    """An agent that said goodbye is not missed after a restart of the aggregator."""
    return _AGENT_LEFT, (agent_id,)


def summary_row(job: str, attempt: int, summary: Mapping[str, Any]) -> Statement:
    """The newest derived summary of an attempt of a job."""
    return _SUMMARY, (_json(summary), job, attempt)


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
    return _ALERT, (*columns, _packed(alert))


def engine_row(state: EngineState) -> Statement:
    """What the rule engine of a later process goes on from."""
    return _ENGINE, (_packed(state),)


def exporter_row(exporter: str, body: bytes) -> Statement:
    """What an exporter of a later process goes on from."""
    return _EXPORTER, (exporter, body)


def capture_row(capture_id: str, requested_unix_s: float, body: bytes) -> Statement:
    """A capture as it stands."""
    return _CAPTURE, (capture_id, requested_unix_s, body.decode())


def node_memory_row(node: str, kind: str, key: str, unix_s: float, body: object) -> Statement:
    """What is remembered of a node: the `node` itself, an `incident` or a `drain`."""
    return _NODE_MEMORY, (node, kind, key, unix_s, _json(body))


def retention_row(unix_s: float) -> Statement:
    """The time by which what is old was deleted last."""
    return _RETENTION, (unix_s,)


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
        line.warmup,
        line.flops_per_s_per_gpu,
        line.tokens_per_s,
        line.samples_per_s,
        _storable(line.global_batch_size),
        _json(dict(line.losses)),
    )


def _storable(number: int | None) -> int | None:
    """SQLite's integers have 64 bits with a sign; what is larger is garbage."""
    return None if number is None or number >= 1 << 63 else number


def _finite(values: Mapping[_K, float]) -> dict[_K, float]:
    return {key: value for key, value in values.items() if math.isfinite(value)}


def _packed(value: object) -> bytes:
    # The value of an alert may be NaN or infinite, which JSON cannot hold.
    return msgspec.msgpack.encode(value)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
