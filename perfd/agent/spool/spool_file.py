"""Opens the spool's file: lock, schema, and recovery from damage."""

from __future__ import annotations

import errno
import logging
import re
import sqlite3
import uuid
from dataclasses import dataclass
from pathlib import Path

from perfd.errors import SpoolError, reason_of
from perfd.file_access import is_gone
from perfd.process_lock import HeldElsewhereError, ProcessLock

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
"""Version of the spool's tables. A spool of a newer perfd is set aside, not read."""
FILE_NAME = "spool.sqlite"
DAMAGED_NAME = "spool.damaged.sqlite"
_LOCK_NAME = "agent.lock"
_UUID = re.compile(rb"[0-9a-f-]{36}")
_MAX_SEQUENCE = 1 << 53
"""No agent sends this many batches: a larger number was damaged."""
_DAMAGED_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NO_ROOM_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_NO_ROOM_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(slots=True, kw_only=True)
class SpoolFile:
    """An open spool file and the lock that keeps other agents out."""

    path: str
    database: sqlite3.Connection
    lock: ProcessLock | None
    in_memory: bool = False
    movable: bool = True
    """False once another spool was found at the path."""

    def settle(self) -> bool:
        """Write a spool that is in memory, or whose file was removed, to its file; True when that was done.

        A file with batches stays as it is, for the agent's next start: they have another identity.
        """
        path = Path(self.path)
        if not self.movable or not (self.in_memory or is_gone(path)):
            return False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock_again(path.parent)
            if not self.in_memory:
                # What a part that is still there says would be read into the new file.
                _remove_beside(path)
            disk = _open_or_set_aside(path)
        except (OSError, sqlite3.Error, SpoolError):
            return False
        try:
            self.movable = disk.execute("SELECT count(*) FROM batch").fetchone() == (0,)
            if self.movable:
                self.database.backup(disk)
                self.database, disk = disk, self.database
        except sqlite3.Error:
            return False
        finally:
            disk.close()
        if self.movable:
            self.in_memory = False
            log.warning(
                "The spool is on disk again: its disk had been full, or its file removed.",
                extra={"path": self.path},
            )
        return self.movable

    def _lock_again(self, directory: Path) -> None:
        """Hold the lock in the folder as it is now; raises `OSError` and `SpoolError`."""
        if self.lock is None or not (directory / _LOCK_NAME).exists():
            before, self.lock = self.lock, _lock(directory)
            if before is not None:
                before.close()

    def close(self) -> None:
        """Close the file and release the lock; may be called twice."""
        self.database.close()
        if self.lock is not None:
            self.lock.close()


def open_file(directory: Path) -> SpoolFile:
    """The spool in `directory`, created if missing; raises `SpoolError`.

    A damaged file is moved aside and a new identity begins. If the disk is full, or the kernel made the disk
    of an existing spool read-only, the spool is in memory, so that an agent can still start and stream.
    """
    path = directory / FILE_NAME
    lock = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = _lock(directory)
        return SpoolFile(path=str(path), database=_open_or_set_aside(path), lock=lock)
    except (OSError, sqlite3.Error) as error:
        if not (_is_no_room(error) or (_is_read_only(error) and path.exists())):
            if lock is not None:
                lock.close()
            raise SpoolError(
                f"The spool {path} cannot be opened: {reason_of(error)}. "
                "Set spool.directory to a folder that this user can write."
            ) from error
        log.error(  # noqa: TRY400  (the operator must make room; where it was raised does not help)
            "The spool's disk is full or read-only: batches stay in memory, and a restart loses them. Free "
            "disk space, or repair the disk.",
            extra={"path": str(path), "reason": reason_of(error)},
        )
        return SpoolFile(path=str(path), database=_connect(":memory:"), lock=lock, in_memory=True)
    except SpoolError:
        if lock is not None:
            lock.close()
        raise


def _lock(directory: Path) -> ProcessLock:
    try:
        return ProcessLock(directory / _LOCK_NAME)
    except HeldElsewhereError as error:
        raise SpoolError(
            f"Another agent (process {error.holder}) uses the spool in {directory}: "
            "stop it, or give this one another spool.directory."
        ) from error


def _open_or_set_aside(path: Path) -> sqlite3.Connection:
    try:
        return _connect(str(path))
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        # SQLite's message about a damaged schema quotes it.
        if isinstance(error, sqlite3.Error) and _primary_code(error) not in _DAMAGED_CODES:
            raise
        damaged = path.with_name(DAMAGED_NAME)
        log.warning(
            "The spool was damaged: it is moved aside, and its batches are lost.",
            extra={"path": str(path), "set_aside_as": str(damaged), "reason": str(error)},
        )
        path.replace(damaged)
        _remove_beside(path)
        return _connect(str(path))


def _remove_beside(path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _connect(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, check_same_thread=False, isolation_level=None, cached_statements=32)
    try:
        # One process has the file, so SQLite needs no shared memory and takes each lock once.
        database.execute("PRAGMA locking_mode=EXCLUSIVE")
        database.execute("PRAGMA journal_mode=WAL")
        # A power failure may lose the newest transactions, a killed agent none; see Spool.renew.
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute("PRAGMA cache_size=-256")
        _check_sound(database)
        _prepare_schema(database, path)
    except BaseException:
        database.close()
        raise
    return database


def _check_sound(database: sqlite3.Connection) -> None:
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise _damaged(verdict)


def _prepare_schema(database: sqlite3.Connection, path: str) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise SpoolError(
            f"The spool {path} was written by a newer perfd: upgrade this one, or move the file away."
        )
    # Not part of version 1 at first; older versions of perfd ignore it.
    database.execute("CREATE TABLE IF NOT EXISTS bookmark (collector TEXT PRIMARY KEY, text TEXT NOT NULL)")
    if version == SCHEMA_VERSION:
        _check_tables(database)
        return
    database.execute("BEGIN IMMEDIATE")
    database.execute("CREATE TABLE identity (agent_id TEXT NOT NULL, last_sequence INTEGER NOT NULL)")
    database.execute("INSERT INTO identity VALUES (?, 0)", (str(uuid.uuid4()),))
    database.execute(
        "CREATE TABLE batch (sequence INTEGER PRIMARY KEY, records INTEGER NOT NULL, payload BLOB NOT NULL,"
        " crc32 INTEGER)"
    )
    database.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    database.execute("COMMIT")


def _check_tables(database: sqlite3.Connection) -> None:
    """Raise an error if they are damaged."""
    try:
        columns = {
            name: (kind, key) for _, name, kind, _, _, key in database.execute("PRAGMA table_info(batch)")
        }
        if columns.get("sequence") != ("INTEGER", 1):
            # SQLite stores an integer primary key as the row's number: read as another column it is NULL.
            raise _damaged("its batches have no sequence")
        database.execute("SELECT sequence, records, payload, crc32 FROM batch LIMIT 0")
        database.execute("SELECT collector, text FROM bookmark").fetchall()
        rows = database.execute(
            "SELECT CAST(agent_id AS BLOB), typeof(last_sequence), last_sequence,"
            " (SELECT coalesce(max(sequence), 0) FROM batch) FROM identity"
        ).fetchall()
    except sqlite3.OperationalError as error:
        if _primary_code(error) != sqlite3.SQLITE_ERROR:
            raise
        raise _damaged(str(error)) from error
    if len(rows) != 1:
        raise _damaged("it has no identity")
    agent_id, kind, last_sequence, newest = rows[0]
    if not _UUID.fullmatch(agent_id) or kind != "integer" or not newest <= last_sequence <= _MAX_SEQUENCE:
        # No aggregator would accept batches numbered by it.
        raise _damaged("its identity is invalid")


def _damaged(reason: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(reason)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _is_no_room(error: OSError | sqlite3.Error) -> bool:
    if isinstance(error, OSError):
        return error.errno in _NO_ROOM_ERRNOS
    return _primary_code(error) in _NO_ROOM_CODES


def _is_read_only(error: OSError | sqlite3.Error) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EROFS


def _primary_code(error: sqlite3.Error) -> int:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    # The upper bits give details of the same condition: https://www.sqlite.org/rescode.html
    return int(code) & 0xFF
