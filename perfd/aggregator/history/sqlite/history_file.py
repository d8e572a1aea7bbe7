"""Opens the history file: its lock, its schema, and what can be saved of a damaged one."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfd.aggregator.history.database import HistoryLockedError
from perfd.aggregator.history.sqlite.foreign_files import is_foreign
from perfd.aggregator.history.sqlite.salvaged_rows import DamagedFile
from perfd.aggregator.history.sqlite.sqlite_tables import MIGRATIONS, SCHEMA, SCHEMA_VERSION
from perfd.config import HISTORY_REPAIR_SUFFIX
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
_PAGES_AT_ONCE = 1_000
"""A transaction."""
_BESIDE = ("-wal", "-shm")


@dataclass(frozen=True, slots=True)
class Loss:
    """What the repair of a damaged file saved, and what it could not."""

    saved_rows: int
    lost_rows: Mapping[str, int]
    """By table; of pages that can be read at all."""
    unreadable_pages: int
    """Nothing of these can be read, not even how many rows they had."""

    def __str__(self) -> str:
        parts = [f"{rows:,} of {table}" for table, rows in sorted(self.lost_rows.items())]
        lost = f"lost rows: {', '.join(parts) or 'none'}"
        pages = f"; pages that cannot be read: {self.unreadable_pages}" if self.unreadable_pages else ""
        return f"{self.saved_rows:,} rows saved; {lost}{pages}"


@dataclass(slots=True)
class HistoryFile:
    """An open history file and the lock that keeps other aggregators out."""

    connection: sqlite3.Connection
    lock: ProcessLock
    loss: Loss | None = None
    """If it was repaired when it was opened."""

    def close(self) -> None:
        """Close the file and give up the lock; legal twice."""
        self.connection.close()
        self.lock.close()


def open_history(path: Path, busy_timeout_s: float, *, check: bool) -> HistoryFile:
    """The file at `path`, made when it is not there; what is damaged is set aside, and its rows saved.

    With `check` all of it is read for that. Raises `HistoryLockedError` when another aggregator has it,
    `PerfdError` when it is of a newer perfd or no history at all, else `OSError` or `sqlite3.Error`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Before anything is written beside it.
    if is_foreign(path):
        raise PerfdError(
            f"{path} is not a history of perfd, and was not changed: set history.path to another file, or "
            "remove this one."
        )
    lock = _lock(path)
    try:
        _exchange(path)
        try:
            return HistoryFile(_connect(path, busy_timeout_s, check=check), lock)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if not is_damage(error):
                raise
        connection, loss = set_aside(path, busy_timeout_s)
        return HistoryFile(connection, lock, loss)
    except BaseException:
        lock.close()
        raise


def is_damage(error: Exception) -> bool:
    """Whether an error means that the content of the file is not what was written."""
    # Python raises the last one itself, without a code of SQLite.
    return (
        isinstance(error, UnicodeDecodeError)
        or _code(error) in _DAMAGED_CODES
        or str(error).startswith("Could not decode to UTF-8")
    )


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


def remove_beside(path: Path) -> None:
    """Remove what SQLite keeps beside a file that is gone; raises `OSError`."""
    for suffix in _BESIDE:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def set_aside(path: Path, busy_timeout_s: float) -> tuple[sqlite3.Connection, Loss]:
    """Rename a damaged file, and go on with a new one that has the rows of the old one that can be read.

    A process that ends meanwhile leaves the old file where it is, or a complete new one.
    """
    making = path.with_name(f"{path.name}.repairing")
    _remove(making)
    try:
        loss = _save_rows(path, making, busy_timeout_s)
    except BaseException:
        # What a full disk has no room for must not keep it full.
        _remove(making)
        raise
    making.replace(_repaired(path))
    _exchange(path)
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    note = path.with_name(path.name + HISTORY_REPAIR_SUFFIX)
    with contextlib.suppress(OSError):
        note.write_text(f"repaired at {when}: {loss}\n", encoding="utf-8")
    log.error(
        "The history file was damaged: it was moved aside, and what could be read was copied to a new one.",
        extra={"path": str(path), "set_aside_as": str(_damaged(path)), "repair": str(loss)},
    )
    return _connect(path, busy_timeout_s), loss


def _exchange(path: Path) -> None:
    """Put a repaired file where the damaged one is; may have been interrupted before."""
    repaired, damaged = _repaired(path), _damaged(path)
    if not repaired.exists():
        return
    if path.exists():
        # The log first: SQLite would take it for that of the repaired file.
        for suffix in _BESIDE:
            beside = path.with_name(path.name + suffix)
            if beside.exists():
                beside.replace(damaged.with_name(damaged.name + suffix))
            else:
                damaged.with_name(damaged.name + suffix).unlink(missing_ok=True)
        path.replace(damaged)
    repaired.replace(path)


def _remove(path: Path) -> None:
    for suffix in ("", *_BESIDE):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _repaired(path: Path) -> Path:
    return path.with_name(f"{path.name}.repaired")


def _damaged(path: Path) -> Path:
    return path.with_name(f"{path.name}.damaged")


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


def _connect(path: Path, busy_timeout_s: float, *, check: bool = False) -> sqlite3.Connection:
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
        if check:
            _check_pages(connection)
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
                raise _damage(f"The columns of table {table} are damaged.")


def _check_pages(connection: sqlite3.Connection) -> None:
    """Raise an error of damage if a page is not as it should be.

    A changed pointer to a page hides rows from SQLite without an error, for ever.
    """
    [(found,)] = connection.execute("PRAGMA quick_check(1)").fetchall()
    if found != "ok":
        raise _damage(found)


def _damage(reason: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(reason)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _columns(connection: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    """Number, name, type, whether it may be null, default and place in the key of each."""
    return connection.execute(f"PRAGMA table_info({table})").fetchall()


def _save_rows(damaged: Path, new: Path, busy_timeout_s: float) -> Loss:
    """Copy the rows that can be read to a new file."""
    copied: Counter[str] = Counter()
    stated: Counter[str] = Counter()
    with contextlib.closing(_connect(new, busy_timeout_s)) as connection, DamagedFile(damaged) as old:
        pages = old.salvage()
        while some := list(itertools.islice(pages, _PAGES_AT_ONCE)):
            connection.execute("BEGIN")
            for page in some:
                before = connection.total_changes
                places = ", ".join("?" * len(page.rows[0]))
                connection.executemany(f"INSERT OR IGNORE INTO {page.table} VALUES ({places})", page.rows)  # noqa: S608
                copied[page.table] += connection.total_changes - before
                stated[page.table] += len(page.rows) + page.lost_rows
            connection.execute("COMMIT")
        return Loss(copied.total(), dict(stated - copied), old.unreadable_pages)
