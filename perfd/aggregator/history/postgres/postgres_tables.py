"""The SQL that writes history to PostgreSQL, and the values that it takes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from perfd.aggregator.history.history_rows import NODE_MEMORY_S, STEP_COLUMNS, RowKind, Statement

_Values = tuple[Any, ...]
_OF_ATTEMPT = " FROM jobs WHERE job = %s AND attempt = %s"
"""The source of the day that names the partition; it never changes for an attempt."""
_STEP_VALUES = (
    "%s::bigint, %s::float8, %s::float8, %s::bigint, %s::smallint, %s::float8, %s::float8, %s::float8, "
    "%s::bigint, %s::text"
)


def _replace(columns: str) -> str:
    return "DO UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in columns.split(", "))


WRITES: Mapping[RowKind, str] = {
    RowKind.JOB: (
        "INSERT INTO jobs (job, attempt, started_unix_s, received_unix_s, began_on) "
        "VALUES (%s, %s, %s, %s, %s) ON CONFLICT (job, attempt) DO UPDATE "
        # A clock that is set back for a moment makes no job old.
        "SET received_unix_s = greatest(jobs.received_unix_s, excluded.received_unix_s)"
    ),
    RowKind.DESCRIPTION: "UPDATE jobs SET description = %s WHERE job = %s AND attempt = %s",
    RowKind.SUMMARY: "UPDATE jobs SET summary = %s WHERE job = %s AND attempt = %s",
    RowKind.STEP: (
        f"INSERT INTO step_rows (began_on, job, attempt, {STEP_COLUMNS}) "
        f"SELECT began_on, job, attempt, {_STEP_VALUES}{_OF_ATTEMPT} "
        f"ON CONFLICT (job, attempt, step, began_on) {_replace(STEP_COLUMNS)}"
    ),
    RowKind.PHASES: (
        "INSERT INTO phase_rows (began_on, job, attempt, step, time_unix_s, phases) "
        f"SELECT began_on, job, attempt, %s::bigint, %s::float8, %s::text{_OF_ATTEMPT} "
        f"ON CONFLICT (job, attempt, step, began_on) {_replace('time_unix_s, phases')}"
    ),
    RowKind.EVENT: (
        "INSERT INTO event_rows (began_on, job, attempt, event_id, node, time_unix_s, kind, body) "
        f"SELECT began_on, job, attempt, %s::bytea, %s::text, %s::float8, %s::text, %s::text{_OF_ATTEMPT} "
        "ON CONFLICT DO NOTHING"
    ),
    RowKind.FACT: (
        "INSERT INTO node_facts VALUES (%s, %s, %s, %s, %s) "
        f"ON CONFLICT (node, kind, key) {_replace('received_unix_s, body')}"
    ),
    RowKind.AGENT: (
        "INSERT INTO agents VALUES (%s, %s, %s, %s, %s) ON CONFLICT (agent_id) DO UPDATE SET "
        "node = excluded.node, last_sequence = greatest(agents.last_sequence, excluded.last_sequence), "
        "received_unix_s = greatest(agents.received_unix_s, excluded.received_unix_s), epoch = excluded.epoch"
    ),
    RowKind.ALERT: (
        "INSERT INTO alerts VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) "
        "ON CONFLICT (alert_id, started_unix_s) "
        f"{_replace('job, state, first_step, changed_unix_s, body')}"
    ),
    RowKind.ENGINE: f"INSERT INTO engine VALUES (1, %s) ON CONFLICT (id) {_replace('body')}",
    RowKind.EXPORTER: f"INSERT INTO exporters VALUES (%s, %s) ON CONFLICT (exporter) {_replace('body')}",
    RowKind.CAPTURE: (
        "INSERT INTO captures VALUES (%s, %s, %s) "
        f"ON CONFLICT (capture_id) {_replace('requested_unix_s, body')}"
    ),
    RowKind.NODE_MEMORY: (
        "INSERT INTO node_memory VALUES (%s, %s, %s, %s, %s) "
        f"ON CONFLICT (node, kind, key) {_replace('unix_s, body')}"
    ),
    RowKind.RETENTION: f"INSERT INTO retention VALUES (1, %s) ON CONFLICT (id) {_replace('unix_s')}",
}
"""The SQL of each kind but `EXPIRED`; its values are those of `parameters`."""

EXPIRED = (
    "DELETE FROM alerts WHERE changed_unix_s < %s",
    "DELETE FROM captures WHERE requested_unix_s < %s",
    "DELETE FROM node_facts WHERE received_unix_s < %s",
    f"DELETE FROM node_memory WHERE unix_s < %s::float8 - {NODE_MEMORY_S}",
    "DELETE FROM agents WHERE received_unix_s < %s",
    "DELETE FROM jobs WHERE received_unix_s < %s",
)
"""Delete rows older than a time; partitions are dropped separately."""

NEWEST_STEPS = (
    f"SELECT DISTINCT ON (step) {STEP_COLUMNS}, attempt FROM steps "
    "WHERE job = ? AND step >= ? ORDER BY step, attempt DESC LIMIT ?"
)

_PARAMETERS: Mapping[RowKind, Callable[[_Values], _Values]] = {
    RowKind.JOB: lambda values: (*values, day_of(values[3])),
    RowKind.STEP: lambda values: (*values[2:], *values[:2]),
    RowKind.PHASES: lambda values: (*values[2:], *values[:2]),
    RowKind.EVENT: lambda values: (_digest(values[2:]), *values[2:], *values[:2]),
    RowKind.ALERT: lambda values: (_digest(values[1:3]), *values),
}


def parameters(kind: RowKind, values: _Values) -> _Values:
    """The values of a statement for its SQL."""
    arrange = _PARAMETERS.get(kind)
    cleaned = tuple(map(storable, values))
    return cleaned if arrange is None else arrange(cleaned)


def storable(value: Any) -> Any:  # noqa: ANN401  (whatever a column holds)
    """A value as SQLite would give it back: NaN is NULL there, and PostgreSQL's text holds no NUL."""
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, str) and "\0" in value:
        return value.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return value


def in_runs(statements: Sequence[Statement]) -> Iterator[tuple[RowKind, list[_Values]]]:
    """The statements of a transaction with those of a kind together, to the same effect.

    Attempts come before what belongs to them, and each is written once.
    """
    runs: dict[RowKind, list[_Values]] = {}
    for kind, values in statements:
        if kind is RowKind.EXPIRED:
            yield from _ordered(runs)
            runs = {}
        runs.setdefault(kind, []).append(values)
        if kind is RowKind.EXPIRED:
            yield from _ordered(runs)
            runs = {}
    yield from _ordered(runs)


def days(statements: Iterable[Statement]) -> set[date]:
    """The days whose partitions these statements may need."""
    return {day_of(values[3]) for kind, values in statements if kind is RowKind.JOB}


def day_of(unix_s: float) -> date:
    """The day in UTC; raises `ValueError` or `OverflowError` for what is none."""
    return datetime.fromtimestamp(unix_s, UTC).date()


def _ordered(runs: Mapping[RowKind, list[_Values]]) -> Iterator[tuple[RowKind, list[_Values]]]:
    # The order of `RowKind`: jobs first.
    for kind in RowKind:
        if kind in runs:
            yield kind, _merged(runs[kind]) if kind is RowKind.JOB else runs[kind]


def _merged(jobs: Sequence[_Values]) -> list[_Values]:
    """Each attempt once, as the first row made it, with the newest time."""
    merged: dict[tuple[str, int], _Values] = {}
    for job, attempt, started_unix_s, received_unix_s in jobs:
        _, _, started, received = merged.get((job, attempt), (job, attempt, started_unix_s, received_unix_s))
        merged[job, attempt] = job, attempt, started, max(received, received_unix_s)
    return list(merged.values())


def _digest(values: Sequence[Any]) -> bytes:
    """A key of texts that may be too long for an index."""
    return hashlib.sha256(repr(values).encode()).digest()[:16]
