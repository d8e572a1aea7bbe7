"""A PostgreSQL database as a database of history."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import date
from time import monotonic, sleep
from typing import Any

import psycopg

from perfd.aggregator.history.database import (
    HistoryLockedError,
    HistoryUnavailableError,
    Query,
    UnstorableError,
)
from perfd.aggregator.history.history_rows import RowKind, Statement
from perfd.aggregator.history.postgres import partitions
from perfd.aggregator.history.postgres.postgres_tables import (
    EXPIRED,
    NEWEST_STEPS,
    WRITES,
    days,
    in_runs,
    parameters,
    storable,
)
from perfd.aggregator.history.postgres.schema_version import bring_up_to_date
from perfd.aggregator.partition import Partition
from perfd.config import HistoryConfig
from perfd.errors import PerfdError
from perfd.net.postgres_requirements import require_database
from perfd.net.postgres_server import PostgresConnection, PostgresError, PostgresServer, postgres_error

log = logging.getLogger(__name__)

_START_WAIT_S = 30.0
"""How long a start waits for a server that starts too, or for the lock of an aggregator that just ended."""
_LOOK_EVERY_S = 0.5
"""Between two attempts to connect."""
_READERS = 4
"""Queries of the API at a time, besides the connection that writes."""
_READER_WITHIN_S = 5.0
"""How long a query of the API waits for its turn."""
_READ_WITHIN_S = 20.0
"""How long a query of the API may take."""
_TIDY_WITHIN_S = 120.0
"""How long a deletion of old rows may take."""
_LOCK_CLASS = 0x70657266
"""`perf`: the first half of the advisory lock's key; the second names the schema."""
_LOCK_PAUSES_S = (0.0, 0.1, 0.4, 1.0)
"""A server frees the lock a moment after the connection that held it was closed."""
_END_EARLIER = """
SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE granted AND locktype = 'advisory' AND classid = %s
AND objid::bigint = hashtext(current_schema())::bigint & 4294967295
AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND substring(application_name FROM '^perfd aggregator lease ([0-9]+) ')::bigint < %s
"""
"""Ends connections that hold this schema's lock with an earlier lease."""
_UNSTORABLE = ("22", "23", "54")
"""Classes of SQLSTATE that are the row's: data exceptions, violated constraints, limits of an index."""
_NO_PARTITION = "23514"


class PostgresDatabase:
    """One database, or one schema of it. An advisory lock of the writing connection keeps others out.

    An aggregator that lost its connection and comes back after another one has written is refused for good:
    what it knows is out of date. `open` waits the first time, and later raises at once.
    """

    required_at_start = True
    """Without it, attempts of jobs and sequences of agents would begin again and replace what is stored."""
    newest_steps_query = NEWEST_STEPS
    lost_rows = unreadable_pages = 0
    remedy = "The aggregator retries until PostgreSQL accepts it; no other action is needed then."

    def __init__(
        self,
        config: HistoryConfig,
        *,
        start_wait_s: float = _START_WAIT_S,
        partition: Partition | None = None,
    ) -> None:
        """With a `partition`, opening it ends the connections of earlier holders, even paused ones."""
        self._epoch = None if partition is None else partition.epoch
        lease = "" if partition is None else f"lease {partition.epoch} "
        self._server = PostgresServer(
            config,
            application=f"perfd aggregator {lease}{socket.gethostname()}:{os.getpid()}",
            schema=None if partition is None else f"perfd_{partition.number}",
        )
        self._start_wait_s = start_wait_s
        # Others start after this one, and a later holder keeps the lock.
        self._lease = partition
        self._connection: PostgresConnection | None = None
        self._generation: int | None = None
        """Counts the aggregators that have opened it; None before the first time."""
        self._days: set[date] = set()
        self._expired_unix_s: float | None = None
        self._idle: deque[PostgresConnection] = deque()
        self._readers = threading.Semaphore(_READERS)

    @property
    def place(self) -> str:
        return self._server.place

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def open(self) -> float | None:
        if self._generation is not None:
            return self._open()
        deadline_s = monotonic() + self._start_wait_s
        waits = False
        while True:
            try:
                return self._open()
            except (HistoryUnavailableError, HistoryLockedError) as error:
                if monotonic() >= deadline_s or not self._holds():
                    raise PerfdError(
                        f"The history at {self.place} cannot be used: {error} The aggregator does not start "
                        "without it; agents keep their batches."
                    ) from error
                if not waits:
                    waits = True
                    log.warning(
                        "History is not available yet: the start waits for it.",
                        extra={"history": self.place, "error": str(error)},
                    )
            sleep(_LOOK_EVERY_S)

    def write(self, statements: Sequence[Statement]) -> None:
        connection = self._writer()
        with self._errors():
            new = days(statements) - self._days
            if new:
                partitions.create(connection, new)
                self._days |= new
            with connection.pipeline(), connection.transaction(), connection.cursor() as cursor:
                for kind, rows in in_runs(statements):
                    if kind is RowKind.EXPIRED:
                        for query in EXPIRED:
                            cursor.executemany(query, rows)
                    else:
                        cursor.executemany(WRITES[kind], [parameters(kind, row) for row in rows])
        self._expired_unix_s = max(
            (values[0] for kind, values in statements if kind is RowKind.EXPIRED),
            default=self._expired_unix_s,
        )

    def tidy(self) -> None:
        if self._expired_unix_s is None:
            return
        before_unix_s, self._expired_unix_s = self._expired_unix_s, None
        connection = self._writer()
        with self._errors(), _limited(connection, _TIDY_WITHIN_S):
            dropped = partitions.drop_expired(connection, before_unix_s)
        self._days -= dropped
        if dropped:
            log.info(
                "Expired partitions of the history were dropped.",
                extra={"history": self.place, "days": sorted(map(str, dropped))},
            )

    @contextlib.contextmanager
    def reading(self) -> Iterator[Query]:
        """Connections for reading are kept; they hold no lock."""
        try:
            with self._reader() as connection:

                def query(text: str, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
                    return connection.execute(text.replace("?", "%s"), list(map(storable, values)))

                yield query
        except psycopg.Error as error:
            raise HistoryUnavailableError(str(postgres_error(error))) from error
        except PostgresError as error:
            raise HistoryUnavailableError(str(error)) from error

    def repair(self) -> None:
        """PostgreSQL repairs itself or its administrator does."""
        if self._connection is None:
            self.open()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        while self._idle:
            self._idle.pop().close()
        if connection is not None:
            connection.close()

    def _open(self) -> float | None:
        with self._errors():
            connection = self._server.connect()
            try:
                reached_unix_s = self._prepare(connection)
            except BaseException:
                connection.close()
                raise
        self._connection = connection
        return reached_unix_s

    def _prepare(self, connection: PostgresConnection) -> float | None:
        require_database(connection, self.place)
        # A default of `off`, of the server or this user, would acknowledge what a power cut takes.
        connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false) "
            "WHERE current_setting('synchronous_commit') = 'off'"
        )
        self._lock(connection)
        if self._lease is not None and not self._lease.serves():
            # The lock may be free because the next holder's connection just broke.
            raise HistoryLockedError("The lease of this partition has ended.")
        with _limited(connection, _TIDY_WITHIN_S):
            # Another aggregator may have upgraded it until the lock was free.
            bring_up_to_date(self._server, require_database(connection, self.place))
        self._fence(connection)
        partitions.create(connection, partitions.in_use(connection) - partitions.existing(connection))
        self._days = partitions.existing(connection)
        found = connection.execute("SELECT unix_s FROM retention").fetchone()
        return None if found is None else float(found[0])

    def _holds(self) -> bool:
        return self._lease is None or self._lease.held()

    def _lock(self, connection: PostgresConnection) -> None:
        key = "%s, hashtext(current_schema())"
        for pause_s in _LOCK_PAUSES_S:
            time.sleep(pause_s)
            taken = connection.execute(f"SELECT pg_try_advisory_lock({key})", [_LOCK_CLASS]).fetchone()
            if taken is not None and taken[0]:
                return
            if self._epoch is not None:
                connection.execute(_END_EARLIER, [_LOCK_CLASS, self._epoch])
        holder = connection.execute(
            "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE granted AND "
            "locktype = 'advisory' AND classid = %s AND pg_locks.database = "
            "(SELECT oid FROM pg_database WHERE datname = current_database()) LIMIT 1",
            [_LOCK_CLASS],
        ).fetchone()
        name = f" ({holder[0]})" if holder is not None and holder[0] else ""
        raise HistoryLockedError(
            f"Another aggregator{name} uses this database: stop it, or give this one another database."
        )

    def _fence(self, connection: PostgresConnection) -> None:
        """Count this aggregator, or verify that no other one was counted since."""
        if self._generation is None:
            row = connection.execute(
                "UPDATE writer SET generation = generation + 1 RETURNING generation"
            ).fetchone()
            self._generation = None if row is None else int(row[0])
            return
        row = connection.execute("SELECT generation FROM writer").fetchone()
        if row is None or row[0] != self._generation:
            raise HistoryLockedError(
                "Another aggregator has written to this history since: restart this one to continue."
            )

    @contextlib.contextmanager
    def _reader(self) -> Iterator[PostgresConnection]:
        if not self._readers.acquire(timeout=_READER_WITHIN_S):
            raise HistoryUnavailableError("All connections for reading are in use.")
        try:
            connection = self._idle_reader() or self._new_reader()
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            if self._connection is None:
                connection.close()
            else:
                self._idle.append(connection)
        finally:
            self._readers.release()

    def _idle_reader(self) -> PostgresConnection | None:
        """One that still answers; if the newest does not, the others would not either."""
        with contextlib.suppress(IndexError):
            connection = self._idle.pop()
            try:
                connection.execute("SELECT 1")
            except psycopg.Error:
                connection.close()
                while True:
                    self._idle.pop().close()
            return connection
        return None

    def _new_reader(self) -> PostgresConnection:
        connection = self._server.connect()
        connection.limit_s = _READ_WITHIN_S
        try:
            connection.execute(
                "SELECT set_config('default_transaction_read_only', 'on', false), "
                "set_config('statement_timeout', %s, false)",
                [f"{_READ_WITHIN_S:.0f}s"],
            )
        except BaseException:
            connection.close()
            raise
        return connection

    def _writer(self) -> PostgresConnection:
        if self._connection is None:
            raise HistoryUnavailableError("There is no connection.")
        return self._connection

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Failures other than those of a row may be temporary: no row is dropped because of them."""
        try:
            yield
        except psycopg.Error as error:
            raise _translated(postgres_error(error), of_row=isinstance(error, psycopg.DataError)) from error
        except PostgresError as error:
            raise _translated(error, of_row=False) from error
        except (OverflowError, ValueError) as error:
            raise UnstorableError(str(error)) from error


def _translated(error: PostgresError, *, of_row: bool) -> PerfdError:
    state = error.sqlstate
    if state == _NO_PARTITION:
        # It was dropped by hand: the next connection creates it again.
        return HistoryUnavailableError(str(error))
    if (state is not None and state.startswith(_UNSTORABLE)) or (state is None and of_row):
        return UnstorableError(str(error))
    return HistoryUnavailableError(str(error))


@contextlib.contextmanager
def _limited(connection: PostgresConnection, limit_s: float) -> Iterator[None]:
    usual_s, connection.limit_s = connection.limit_s, limit_s
    try:
        yield
    finally:
        connection.limit_s = usual_s
