"""What survives a restart of the aggregator: an SQLite file, written by a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from perfd.aggregator.history.history_tables import (
    EXPIRED,
    MIGRATIONS,
    SCHEMA,
    SCHEMA_VERSION,
    Statement,
    phases_of,
    step_of,
)
from perfd.errors import PerfdError
from perfd.model import (
    Event,
    GpuInfo,
    JobDescription,
    RankPlacement,
    ServerInfo,
    StepPhases,
    TrainingStep,
)
from perfd.rules.rule_model import Alert, EngineState

log = logging.getLogger(__name__)
_T = TypeVar("_T")
_STEP_COLUMNS = (
    "step, time_unix_s, step_time_s, steps_covered, warmup, flops_per_s_per_gpu, tokens_per_s, "
    "samples_per_s, global_batch_size, losses"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """What history knows of the newest attempt of a job."""

    job: str
    attempt: int
    started_unix_s: float | None
    received_unix_s: float
    description: JobDescription | None
    steps: Sequence[TrainingStep]
    phases: Sequence[StepPhases]
    events: Sequence[tuple[str, Event]]
    """With the node that each came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAlert:
    """An alert that fired, and the job's newest step then."""

    alert: Alert
    first_step: int | None
    changed_unix_s: float


@dataclass(frozen=True, slots=True)
class _Group:
    statements: Sequence[Statement]
    done: Callable[[], None] | None


class HistoryStore:
    """Writes groups of rows, many groups a transaction; a disk that fails costs history, not ingest.

    `submit` may be called from any thread and never waits. Readers open the file for themselves.
    Raises `PerfdError` when the file cannot be used at the start.
    """

    def __init__(self, path: Path, *, max_queued: int = 20_000, busy_timeout_s: float = 2.0) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._max_queued = max_queued
        self._queue: deque[_Group] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._healthy = True
        self.failed_rows = 0
        """Rows that could not be written."""
        self.written_rows = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = self._open()
        except (OSError, sqlite3.Error) as error:
            raise PerfdError(
                f"The history file {path} cannot be used: {error}. Set history.path to a file that "
                "this user may write, or to null to keep history in memory."
            ) from error
        self._thread = threading.Thread(target=self._run, name="perfd-history", daemon=True)
        self._thread.start()

    @property
    def healthy(self) -> bool:
        """Whether the newest write succeeded."""
        return self._healthy

    def submit(self, statements: Sequence[Statement], done: Callable[[], None] | None = None) -> None:
        """Write rows soon. `done` is called, from the writer's thread, when they are stored or given up."""
        group = _Group(statements, done)
        with self._changed:
            if not self._closing and len(self._queue) < self._max_queued:
                self._queue.append(group)
                self._changed.notify()
                return
            self.failed_rows += len(statements)
        if done is not None:
            done()

    def expire(self, before_unix_s: float) -> None:
        """Delete what is older than a time, soon."""
        self.submit([(statement, (before_unix_s,)) for statement in EXPIRED])

    def finish(self) -> None:
        """Take no more rows: write what is queued and close the file. Returns at once."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def close(self, timeout_s: float | None = None) -> bool:
        """As `finish`, and wait for it; False when that took longer. Legal twice."""
        self.finish()
        self._thread.join(timeout_s)
        ended = not self._thread.is_alive()
        if not ended:
            log.error(
                "History was not on disk in time; the newest of it may be lost.",
                extra={"path": str(self._path)},
            )
        return ended

    def agents(self) -> list[tuple[str, str, int, float]]:
        """Every agent's id, node, highest stored sequence, and when it was last heard of."""
        with self._reader() as reader:
            return list(reader.execute("SELECT agent_id, node, last_sequence, received_unix_s FROM agents"))

    def node_facts(self) -> list[tuple[str, GpuInfo | RankPlacement | ServerInfo]]:
        """What is known of nodes, with each node's name."""
        kinds: dict[str, Any] = {"gpu": GpuInfo, "rank": RankPlacement, "server": ServerInfo}
        with self._reader() as reader:
            found = reader.execute("SELECT node, kind, body FROM node_facts ORDER BY received_unix_s")
            return [(node, msgspec.json.decode(body, type=kinds[kind])) for node, kind, body in found]

    def jobs_since(self, unix_s: float, *, steps: int, phases: int) -> list[StoredJob]:
        """The jobs heard of since a time: the newest attempt, with at most so many of its newest rows."""
        with self._reader() as reader:
            found = reader.execute(
                "SELECT job, max(attempt), started_unix_s, received_unix_s, description FROM jobs "
                "WHERE received_unix_s >= ? GROUP BY job",
                (unix_s,),
            ).fetchall()
            return [self._stored(reader, row, steps, phases) for row in found]

    def steps(self, job: str, *, first_step: int, limit: int) -> list[dict[str, Any]]:
        """Stored progress lines of the newest attempt that has the step, as the columns of the table."""
        with self._reader() as reader:
            found = reader.execute(
                f"SELECT {_STEP_COLUMNS}, max(attempt) FROM steps "  # noqa: S608  (a constant)
                "WHERE job = ? AND step >= ? GROUP BY step ORDER BY step LIMIT ?",
                (job, first_step, limit),
            )
            names = [*_STEP_COLUMNS.split(", "), "attempt"]
            lines = [dict(zip(names, row, strict=True)) for row in found]
        for line in lines:
            line["losses"] = msgspec.json.decode(line["losses"])
            line["warmup"] = bool(line["warmup"])
        return lines

    def alerts(self, *, limit: int) -> list[StoredAlert]:
        """The newest alerts that fired, oldest first; those that cannot be read are left out."""
        with self._reader() as reader:
            found = reader.execute(
                "SELECT body, first_step, changed_unix_s FROM alerts WHERE body IS NOT NULL "
                "ORDER BY started_unix_s DESC LIMIT ?",
                (limit,),
            ).fetchall()
        alerts = []
        for body, first_step, changed in reversed(found):
            if (alert := self._unpacked(body, Alert)) is not None:
                alerts.append(StoredAlert(alert=alert, first_step=first_step, changed_unix_s=changed))
        return alerts

    def engine_state(self) -> EngineState | None:
        """Where the rule engine was, or None."""
        with self._reader() as reader:
            row = reader.execute("SELECT body FROM engine").fetchone()
        return None if row is None else self._unpacked(row[0], EngineState)

    def captures(self, *, limit: int) -> list[str]:
        """The newest captures as JSON, oldest first."""
        with self._reader() as reader:
            found = reader.execute(
                "SELECT body FROM captures ORDER BY requested_unix_s DESC LIMIT ?", (limit,)
            ).fetchall()
        return [body for (body,) in reversed(found)]

    def summary(self, job: str) -> Any | None:  # noqa: ANN401  (JSON of a documented schema)
        """The newest stored summary of a job that may be long over, or None."""
        with self._reader() as reader:
            row = reader.execute(
                "SELECT summary FROM jobs WHERE job = ? AND summary IS NOT NULL "
                "ORDER BY attempt DESC LIMIT 1",
                (job,),
            ).fetchone()
        return None if row is None else msgspec.json.decode(row[0])

    def _unpacked(self, body: bytes, kind: type[_T]) -> _T | None:
        try:
            return msgspec.msgpack.decode(body, type=kind)
        except (msgspec.DecodeError, TypeError) as error:
            log.warning(
                "A row of the history cannot be read and is left out.",
                extra={"path": str(self._path), "kind": kind.__name__, "error": str(error)},
            )
            return None

    def _stored(self, reader: sqlite3.Connection, row: tuple[Any, ...], steps: int, phases: int) -> StoredJob:
        job, attempt, started, received, description = row
        newest = "WHERE job = ? AND attempt = ? ORDER BY step DESC LIMIT ?"
        step_rows = reader.execute(
            f"SELECT {_STEP_COLUMNS} FROM steps {newest}",  # noqa: S608  (constants)
            (job, attempt, steps),
        ).fetchall()
        phase_rows = reader.execute(
            f"SELECT step, phases FROM phases {newest}",  # noqa: S608  (a constant)
            (job, attempt, phases),
        ).fetchall()
        event_rows = reader.execute(
            "SELECT node, body FROM events WHERE job = ? ORDER BY time_unix_s", (job,)
        ).fetchall()
        return StoredJob(
            job=job,
            attempt=attempt,
            started_unix_s=started,
            received_unix_s=received,
            description=msgspec.json.decode(description, type=JobDescription) if description else None,
            steps=[step_of(job, found) for found in reversed(step_rows)],
            phases=[phases_of(job, step, body) for step, body in reversed(phase_rows)],
            events=[(node, msgspec.json.decode(body, type=Event)) for node, body in event_rows],
        )

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=self._busy_timeout_s, check_same_thread=False)
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL")
        # In WAL mode this survives a killed process; a power cut may cost the last transactions.
        connection.execute("PRAGMA synchronous = NORMAL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            connection.close()
            raise sqlite3.DatabaseError(f"it was written by a newer perfd (schema {version})")
        if version:
            _migrate(connection, version)
        connection.executescript(SCHEMA)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        return connection

    @contextlib.contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=self._busy_timeout_s)) as reader:
                yield reader
        except sqlite3.Error as error:
            raise PerfdError(f"The history file {self._path} cannot be read: {error}.") from error

    def _run(self) -> None:
        while groups := self._next():
            self._write([statement for group in groups for statement in group.statements])
            for group in groups:
                if group.done is not None:
                    group.done()
        self._connection.close()

    def _next(self) -> list[_Group]:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            groups = list(self._queue)
            self._queue.clear()
            return groups

    def _write(self, statements: Sequence[Statement]) -> None:
        try:
            self._connection.execute("BEGIN")
            for sql, parameters in statements:
                self._connection.execute(sql, parameters)
            self._connection.execute("COMMIT")
        except (sqlite3.Error, OverflowError) as error:
            self.failed_rows += len(statements)
            if self._healthy:
                log.error(  # noqa: TRY400  (where it was raised says nothing that the error does not)
                    "History cannot be written; ingest goes on, and what comes now is not kept.",
                    extra={"path": str(self._path), "error": str(error)},
                )
            self._healthy = False
            with contextlib.suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
        else:
            self.written_rows += len(statements)
            if not self._healthy:
                log.warning("History can be written again.", extra={"path": str(self._path)})
            self._healthy = True


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    """Bring the tables of an older perfd up to date, all or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    for older in range(version, SCHEMA_VERSION):
        connection.execute(MIGRATIONS[older])
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")
