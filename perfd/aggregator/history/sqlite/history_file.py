"""Opens the history file: its lock, its schema, and what can be saved of a damaged one."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfd.aggregator.history.database import HistoryLockedError
from perfd.aggregator.history.sqlite.sqlite_tables import MIGRATIONS, SCHEMA, SCHEMA_VERSION
from perfd.errors import PerfdError, reason_of
from perfd.process_lock import HeldElsewhereError, ProcessLock

log = logging.getLogger(__name__)

_DAMAGED_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_DISK_CODES = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOLFS,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)
_DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EMFILE})
_WAL_BYTES = 64 << 20
"""The write-ahead log is cut to this after a checkpoint: it otherwise stays as long as it ever was."""
_ROWS_AT_ONCE = 1_000


@dataclass(slots=True)
class HistoryFile:
    """An open history file and the lock that keeps other aggregators out."""

    connection: sqlite3.Connection
    lock: ProcessLock

    def close(self) -> None:
        """Close the file and give up the lock; legal twice."""
        self.connection.close()
        self.lock.close()


def open_history(path: Path, busy_timeout_s: float) -> HistoryFile:
    """The file at `path`, made when it is not there; what is damaged is set aside, and its rows saved.

    Raises `HistoryLockedError` when another aggregator has it, else `OSError` or `sqlite3.Error`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = _lock(path)
    try:
        try:
            return HistoryFile(_connect(path, busy_timeout_s), lock)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if not is_damage(error):
                raise
        return HistoryFile(set_aside(path, busy_timeout_s), lock)
    except BaseException:
        lock.close()
        raise


def is_damage(error: Exception) -> bool:
    """Whether an error means that the content of the file is not what was written."""
    return isinstance(error, UnicodeDecodeError) or _code(error) in _DAMAGED_CODES


def is_disk_trouble(error: Exception) -> bool:
    """Whether an error is the disk's, and may pass: no room, no answer, another process at it."""
    if isinstance(error, OSError):
        return error.errno in _DISK_ERRNOS
    return _code(error) in _DISK_CODES


def may_pass(error: Exception, path: Path) -> bool:
    """Whether an error at the start is a disk's trouble, and not that `path` cannot be used as configured."""
    if not is_disk_trouble(error):
        return False
    folder = path.parent
    if not folder.is_dir() or os.statvfs(folder).f_flag & os.ST_RDONLY:
        return True
    if path.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return False
    return not path.exists() or os.access(path, os.R_OK | os.W_OK)


def set_aside(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """Rename a damaged file, and begin a new one with the rows of the old one that can be read."""
    damaged = path.with_name(f"{path.name}.damaged")
    for suffix in ("-wal", "-shm"):
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            beside.replace(damaged.with_name(damaged.name + suffix))
        else:
            damaged.with_name(damaged.name + suffix).unlink(missing_ok=True)
    path.replace(damaged)
    connection = _connect(path, busy_timeout_s)
    rows = _save_rows(damaged, connection)
    log.error(
        "The history file was damaged: it was moved aside, and what could be read was copied to a new one.",
        extra={"path": str(path), "set_aside_as": str(damaged), "rows": rows},
    )
    return connection


def _code(error: Exception) -> int | None:
    # The primary code; the extended ones say which operation failed.
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _lock(path: Path) -> ProcessLock:
    try:
        lock = ProcessLock(path.with_name(f"{path.name}.lock"), required=False)
    except HeldElsewhereError as error:
        raise HistoryLockedError(
            f"Another aggregator (process {error.holder}) uses the history file {path}: "
            "stop it, or give this one another history.path."
        ) from error
    if lock.missing is not None:
        # History is worth more than the guard.
        log.warning(
            "The history file cannot be locked: never let two aggregators use it.",
            extra={"path": str(path), "reason": reason_of(lock.missing)},
        )
    return lock


def _connect(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=busy_timeout_s, check_same_thread=False)
    try:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL")
        # A batch is acknowledged after the commit, and then it survives a power cut, too.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        _migrate(connection, path)
        connection.executescript(SCHEMA)
        _check_tables(connection)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the tables of an older perfd up to date, all or nothing."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise PerfdError(
            f"The history file {path} was written by a newer perfd (schema {version}): upgrade this "
            "one, or set history.path to another file."
        )
    if version in {0, SCHEMA_VERSION}:
        return
    connection.execute("BEGIN IMMEDIATE")
    for older in range(version, SCHEMA_VERSION):
        connection.execute(MIGRATIONS[older])
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _check_tables(connection: sqlite3.Connection) -> None:
    """Raise an error of damage if the columns of a table are not those of `SCHEMA`.

    SQLite opens such a file, but rows cannot be written to it.
    """
    with contextlib.closing(sqlite3.connect(":memory:")) as wanted:
        wanted.executescript(SCHEMA)
        for (table,) in wanted.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if _columns(connection, table) != _columns(wanted, table):
                error = sqlite3.DatabaseError(f"The columns of table {table} are damaged.")
                error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                raise error


def _columns(connection: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    """Number, name, type, whether it may be null, default and place in the key of each."""
    return connection.execute(f"PRAGMA table_info({table})").fetchall()


def _save_rows(damaged: Path, connection: sqlite3.Connection) -> int:
    """Copy each table from both ends up to the damage; returns how many rows that were."""
    saved = 0
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    with contextlib.closing(sqlite3.connect(damaged)) as old:
        for table in tables:
            columns = _columns(connection, table)
            # By number: a name may be what is damaged.
            key = [str(number + 1) for number, *_, in_key in columns if in_key] or ["rowid"]
            for direction in ("ASC", "DESC"):
                order = ", ".join(f"{name} {direction}" for name in key)
                query = f"SELECT * FROM {table} ORDER BY {order}"  # noqa: S608
                whole = False
                for rows, whole in _readable(old, query):  # noqa: B007  (the last one counts)
                    connection.execute("BEGIN")
                    before = connection.total_changes
                    connection.executemany(*_insertion(table, [name for _, name, *_ in columns], rows))
                    connection.execute("COMMIT")
                    saved += connection.total_changes - before
                if whole:
                    break
    return saved


def _insertion(
    table: str, names: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> tuple[str, list[tuple[Any, ...]]]:
    """How to insert rows of a damaged table.

    One of an older perfd has fewer columns, and damage may split one column in two.
    """
    width = min(len(names), len(rows[0])) if rows else 1
    values = f"({', '.join(names[:width])}) VALUES ({', '.join('?' * width)})"
    return f"INSERT OR IGNORE INTO {table} {values}", [row[:width] for row in rows]


def _readable(old: sqlite3.Connection, query: str) -> Iterator[tuple[list[Any], bool]]:
    """Rows up to the damage, in pieces, and with the last piece whether there was none."""
    with contextlib.suppress(sqlite3.Error, UnicodeDecodeError, OverflowError):
        found = old.execute(query)
        while rows := found.fetchmany(_ROWS_AT_ONCE):
            yield rows, False
        yield [], True
