"""What survives a restart of the aggregator: an SQLite file, written by a separate thread."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfd.aggregator.history.history_file import (
    HistoryFile,
    HistoryLockedError,
    is_damage,
    is_disk_trouble,
    may_pass,
    open_history,
    set_aside,
)
from perfd.aggregator.history.history_reader import HistoryReader
from perfd.aggregator.history.history_retention import RetentionClock, reached_unix_s, shrink
from perfd.aggregator.history.history_tables import (
    EXPIRED,
    Statement,
    retention_row,
    size_of,
    without_replaced,
)
from perfd.errors import PerfdError, reason_of

log = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 64 << 20
"""What waits for a disk that is slow or full; agents keep what is beyond it."""
_TRANSACTION_BYTES = 8 << 20
"""A transaction ends at this size, so that what waits for it is acknowledged soon."""
_RETRY_S = 1.0
_REPAIR_WITHIN_S = 120.0
_SIZE_EVERY_TRANSACTIONS = 64


@dataclass(frozen=True, slots=True)
class _Group:
    statements: Sequence[Statement]
    done: Callable[[], None] | None
    size_bytes: int


class HistoryStore(HistoryReader):
    """Writes groups of rows in order, many groups a transaction; a disk that fails does not stop ingest.

    `submit` may be called from any thread and never waits. What the disk does not take waits and is tried
    again, up to `max_queued_bytes`. Raises `PerfdError` when the file can never be used as configured:
    another aggregator has it, a newer perfd wrote it, or this user may not write it. A full disk is no
    such reason.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int | None = None,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
        busy_timeout_s: float = 2.0,
        retry_s: float = _RETRY_S,
    ) -> None:
        super().__init__(path, busy_timeout_s)
        self._max_bytes = max_bytes
        self._max_queued_bytes = max_queued_bytes
        self._retry_s = retry_s
        self._queue: deque[_Group] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._repair_wanted = False
        self._healthy = True
        self._transactions = 0
        self._retention = RetentionClock(None)
        self.failed_rows = 0
        """Rows that could not be written."""
        self.written_rows = 0
        self._file: HistoryFile | None = None
        try:
            self._open()
        except (OSError, sqlite3.Error) as error:
            if not may_pass(error, path):
                raise PerfdError(
                    f"The history file {path} cannot be used: {reason_of(error)}. Set history.path to a "
                    "file that this user may write, or to null to keep history in memory."
                ) from error
            self._report(error)
        self._thread = threading.Thread(target=self._run, name="perfd-history", daemon=True)
        self._thread.start()

    @property
    def healthy(self) -> bool:
        """Whether the newest write succeeded."""
        return self._healthy

    @property
    def closing(self) -> bool:
        """Whether it takes no more rows."""
        return self._closing

    @property
    def has_room(self) -> bool:
        """Whether it can be written and much more may be submitted."""
        return self._healthy and self._queued_bytes * 2 < self._max_queued_bytes

    def submit(self, statements: Sequence[Statement], done: Callable[[], None] | None = None) -> bool:
        """Write rows soon; False when there is no room for them: they are counted as failed.

        `done` is called from the writer's thread when they are on disk, or can never be. While the disk
        takes nothing it is not called.
        """
        group = _Group(statements, done, sum(map(size_of, statements)))
        with self._changed:
            if not self._closing and self._queued_bytes + group.size_bytes <= self._max_queued_bytes:
                self._queue.append(group)
                self._queued_bytes += group.size_bytes
                self._changed.notify_all()
                return True
            self.failed_rows += len(statements)
        return False

    def expire(self, retention_s: float, now_unix_s: float, now_s: float) -> None:
        """Delete soon what is older than this, counting only time in which an aggregator ran."""
        if (reached := self._retention.now(now_unix_s, now_s)) is None:
            return
        expired = [(statement, (reached - retention_s,)) for statement in EXPIRED]
        self.submit([retention_row(reached), *expired])

    def repair(self) -> bool:
        """Let the writer set a damaged file aside; returns whether there is a sound one now."""
        with self._changed:
            self._repair_wanted = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._repair_wanted, _REPAIR_WITHIN_S) and self._healthy

    def finish(self) -> None:
        """Take no more rows: write what is queued and close the file. Returns at once."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

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

    def _open(self) -> sqlite3.Connection:
        """The connection to write with; raises `OSError` or `sqlite3.Error` when there is none now."""
        if self._file is None:
            file = open_history(self._path, self._busy_timeout_s)
            try:
                self._retention = RetentionClock(reached_unix_s(file.connection))
            except BaseException:
                file.close()
                raise
            self._file = file
        return self._file.connection

    def _run(self) -> None:
        while True:
            groups = self._next()
            if self._repair_wanted:
                self._repair()
            if not groups and self._closing:
                break
            if groups and not self._write(groups):
                if self._closing:
                    break
                with self._changed:
                    self._changed.wait_for(lambda: self._closing or self._repair_wanted, self._retry_s)
        with self._changed:
            self.failed_rows += sum(len(group.statements) for group in self._queue)
            self._queue.clear()
        if self._file is not None:
            self._file.close()

    def _next(self) -> list[_Group]:
        """The oldest groups, as many as make a transaction; they stay in the queue until written."""
        groups: list[_Group] = []
        size_bytes = 0
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing or self._repair_wanted)
            for group in self._queue:
                groups.append(group)
                size_bytes += group.size_bytes
                if size_bytes >= _TRANSACTION_BYTES:
                    break
        return groups

    def _write(self, groups: Sequence[_Group]) -> bool:
        """Write groups and take them off the queue; False when the disk does not take them now."""
        try:
            connection = self._open()
            self._commit(connection, groups)
        except HistoryLockedError as error:
            self._report(error)
            return False
        except (OSError, sqlite3.Error, OverflowError, ValueError) as error:
            if is_damage(error):
                self._repair()
                return False
            if is_disk_trouble(error):
                self._report(error)
                self._reopen_later()
                return False
            if len(groups) > 1:
                # One of them holds what no table takes: the others go on without it.
                return all(self._write([group]) for group in groups)
            self.failed_rows += len(groups[0].statements)
            log.error(  # noqa: TRY400  (where it was raised says nothing that the error does not)
                "Rows of the history cannot be written and are left out.",
                extra={"path": str(self._path), "rows": len(groups[0].statements), "error": str(error)},
            )
        else:
            self.written_rows += sum(len(group.statements) for group in groups)
            self._recovered()
            self._cut_when_large(connection)
        with self._changed:
            for group in groups:
                self._queue.popleft()
                self._queued_bytes -= group.size_bytes
        for group in groups:
            if group.done is not None:
                group.done()
        return True

    def _commit(self, connection: sqlite3.Connection, groups: Sequence[_Group]) -> None:
        try:
            connection.execute("BEGIN")
            for sql, parameters in without_replaced([one for group in groups for one in group.statements]):
                connection.execute(sql, parameters)
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            raise

    def _cut_when_large(self, connection: sqlite3.Connection) -> None:
        self._transactions += 1
        if self._max_bytes is None or self._transactions % _SIZE_EVERY_TRANSACTIONS:
            return
        try:
            cut = shrink(connection, self._max_bytes)
        except sqlite3.Error as error:
            self._report(error)
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            return
        if cut:
            log.warning(
                "The history has reached history.max_bytes: its oldest jobs were deleted.",
                extra={"path": str(self._path), "max_bytes": self._max_bytes},
            )

    def _repair(self) -> None:
        try:
            if self._file is None:
                self._open()
            else:
                self._file.connection.close()
                self._file.connection = set_aside(self._path, self._busy_timeout_s)
            self._recovered()
        except (OSError, sqlite3.Error, PerfdError) as error:
            self._report(error)
            self._reopen_later()
        with self._changed:
            self._repair_wanted = False
            self._changed.notify_all()

    def _reopen_later(self) -> None:
        """Give up the connection: after an error of the disk SQLite may refuse to write until it is new."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(sqlite3.Error):
                file.close()

    def _report(self, error: Exception) -> None:
        if self._healthy:
            log.error(
                "History cannot be written: all else goes on, and agents keep what is not stored. Make room "
                "on the disk, or set history.path to another one.",
                extra={"path": str(self._path), "error": reason_of(error)},
            )
        self._healthy = False

    def _recovered(self) -> None:
        if not self._healthy:
            log.warning("History can be written again.", extra={"path": str(self._path)})
        self._healthy = True
