"""An SQLite file as a database of history."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfd.aggregator.history.database import (
    HistoryDamagedError,
    HistoryUnavailableError,
    Query,
    UnstorableError,
)
from perfd.aggregator.history.history_rows import RowKind, Statement
from perfd.aggregator.history.sqlite.file_size import shrink
from perfd.aggregator.history.sqlite.history_file import (
    HistoryFile,
    Loss,
    is_damage,
    is_disk_trouble,
    may_pass,
    open_history,
    remove_beside,
    set_aside,
)
from perfd.aggregator.history.sqlite.sqlite_tables import EXPIRED, NEWEST_STEPS, WRITES
from perfd.errors import PerfdError, reason_of
from perfd.file_access import is_gone

log = logging.getLogger(__name__)

_SIZE_EVERY_TRANSACTIONS = 64
"""Between two looks at the file's size. Chosen."""
_UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite says about a damaged schema quotes it, in whatever bytes it has now."""
_BUSY_TIMEOUT_S = 2.0
"""How long SQLite waits for a lock of another reader, such as a backup, before a write fails and is retried.
"""


class SqliteDatabase:
    """One file, which its `lock` keeps other aggregators out of.

    `open` raises `PerfdError` when the file can never be used as configured: another aggregator has it, a
    newer perfd wrote it, or this user may not write it. A full disk is no such reason.
    """

    required_at_start = False
    """A file that cannot be read is set aside: there is nothing to wait for."""
    newest_steps_query = NEWEST_STEPS
    remedy = "Make room on the disk, or set history.path to another one."

    def __init__(
        self, path: Path, *, max_bytes: int | None = None, busy_timeout_s: float = _BUSY_TIMEOUT_S
    ) -> None:
        """At `max_bytes` the jobs with the oldest data are deleted."""
        self._path = path
        self._max_bytes = max_bytes
        self._busy_timeout_s = busy_timeout_s
        self._file: HistoryFile | None = None
        self._transactions = 0
        self._checked = False
        """All pages, at the start only: a file is opened again after each write that failed."""
        self.lost_rows = 0
        self.unreadable_pages = 0

    @property
    def place(self) -> str:
        return str(self._path)

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def open(self) -> float | None:
        with self._errors():
            try:
                file = open_history(self._path, self._busy_timeout_s, check=not self._checked)
            except (OSError, sqlite3.Error) as error:
                if may_pass(error, self._path):
                    raise
                raise PerfdError(
                    f"The history file {self._path} cannot be used: {reason_of(error)}. Set history.path to "
                    "a file that this user may write, or to null to keep history in memory."
                ) from error
            try:
                reached_unix_s = _reached_unix_s(file.connection)
            except BaseException:
                file.close()
                raise
        self._file, self._checked = file, True
        if file.loss is not None:
            self._count(file.loss)
        return reached_unix_s

    def write(self, statements: Sequence[Statement]) -> None:
        if self._file is not None and is_gone(self._path):
            self._write_back(self._file)
        connection = self._connection()
        try:
            connection.execute("BEGIN")
            for kind, values in statements:
                if kind is RowKind.EXPIRED:
                    for sql in EXPIRED:
                        connection.execute(sql, values)
                else:
                    connection.execute(WRITES[kind], values)
            connection.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            if isinstance(error, (OSError, sqlite3.Error, OverflowError, ValueError)):
                raise _translated(error) from error
            raise

    def tidy(self) -> None:
        self._transactions += 1
        if self._max_bytes is None or self._transactions % _SIZE_EVERY_TRANSACTIONS:
            return
        connection = self._connection()
        try:
            cut = shrink(connection, self._max_bytes)
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise HistoryUnavailableError(reason_of(error)) from error
        if cut:
            log.warning(
                "The history has reached history.max_bytes: its oldest jobs were deleted.",
                extra={"path": str(self._path), "max_bytes": self._max_bytes},
            )

    @contextlib.contextmanager
    def reading(self) -> Iterator[Query]:
        """Opens the file for each question."""
        try:
            uri = f"{self._path.absolute().as_uri()}?mode=ro"
            with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=self._busy_timeout_s)) as reader:
                # A byte that is damaged costs its row, not all that come after it.
                reader.text_factory = lambda data: data.decode(errors="replace")
                yield reader.execute
        except _UNREADABLE as error:
            if is_damage(error):
                raise HistoryDamagedError(str(error)) from error
            raise HistoryUnavailableError(str(error)) from error

    def repair(self) -> None:
        if self._file is None:
            self.open()
            return
        with self._errors():
            self._file.connection.close()
            self._file.connection, loss = set_aside(self._path, self._busy_timeout_s)
        self._count(loss)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(sqlite3.Error):
                file.close()

    def _write_back(self, removed: HistoryFile) -> None:
        """Write the open file to its path again, from which it was removed."""
        self._file = None
        removed.lock.close()
        try:
            # What a part of it that is still there says would be read into the new file.
            with self._errors():
                remove_beside(self._path)
            self.open()
            with self._errors():
                removed.connection.backup(self._connection())
        finally:
            removed.close()
        log.warning("The history file was removed: it is written again.", extra={"path": self.place})

    def _count(self, loss: Loss) -> None:
        self.lost_rows += sum(loss.lost_rows.values())
        self.unreadable_pages += loss.unreadable_pages

    def _connection(self) -> sqlite3.Connection:
        if self._file is None:
            raise HistoryUnavailableError("The history file is not open.")
        return self._file.connection

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Failures other than those of rows may be temporary: no row is dropped because of them."""
        try:
            yield
        except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
            if is_damage(error):
                raise HistoryDamagedError(reason_of(error)) from error
            raise HistoryUnavailableError(reason_of(error)) from error


def _translated(error: Exception) -> PerfdError:
    if is_damage(error):
        return HistoryDamagedError(reason_of(error))
    if is_disk_trouble(error):
        return HistoryUnavailableError(reason_of(error))
    return UnstorableError(reason_of(error))


def _reached_unix_s(connection: sqlite3.Connection) -> float | None:
    """How far the time of retention came in this file; None in a new one."""
    row = connection.execute("SELECT unix_s FROM retention").fetchone()
    if row is None:
        # An older perfd wrote it: its newest rows are of a time that was reached.
        row = connection.execute("SELECT max(received_unix_s) FROM jobs").fetchone()
    return row[0] if isinstance(row[0], float) else None
