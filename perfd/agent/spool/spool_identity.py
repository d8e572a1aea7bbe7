"""The machine and the current life of a spool, so that a copy is detected."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sqlite3
import zlib
from dataclasses import dataclass
from pathlib import Path

_MACHINE_ID = Path("/etc/machine-id")
_TABLE = (
    "CREATE TABLE IF NOT EXISTS life (machine TEXT NOT NULL, epoch TEXT NOT NULL, welcomed TEXT NOT NULL,"
    " crc32 INTEGER NOT NULL)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The current life of a spool. Epochs are random, and known only to the agent and its aggregator."""

    epoch: str
    previous_epoch: str
    """The newest that an aggregator welcomed; empty for none."""
    copied: bool
    """The file was written on another machine."""


def machine_fingerprint(machine_id: Path = _MACHINE_ID) -> str:
    """A hash of this machine's id, which is confidential (machine-id(5)); empty if it has none."""
    try:
        content = machine_id.read_bytes().strip()
    except OSError:
        return ""
    return hmac.new(content, b"perfd.spool", hashlib.sha256).hexdigest() if content else ""


def begin_life(database: sqlite3.Connection, machine: str) -> Life:
    """Record that the spool is opened; raises `sqlite3.Error` if it cannot be written.

    An epoch that no aggregator welcomed yet is kept, because one may have seen it.
    """
    database.execute(_TABLE)
    written_on, epoch, welcomed = _read_life(database)
    copied = bool(machine and written_on and machine != written_on)
    if copied:
        epoch = welcomed = ""
    if epoch == welcomed:
        epoch = secrets.token_hex(16)
    write_life(database, machine or written_on, epoch, welcomed)
    return Life(epoch=epoch, previous_epoch=welcomed, copied=copied)


def _read_life(database: sqlite3.Connection) -> tuple[str, str, str]:
    """The last recorded life; empty if none, or damaged: that must not look like a copy."""
    row = database.execute("SELECT machine, epoch, welcomed, crc32 FROM life").fetchone()
    if row is None or _checksum(*row[:3]) != row[3]:
        return "", "", ""
    return row[0], row[1], row[2]


def _checksum(machine: str, epoch: str, welcomed: str) -> int:
    return zlib.crc32(f"{machine} {epoch} {welcomed}".encode())


def write_life(database: sqlite3.Connection, machine: str, epoch: str, welcomed: str) -> None:
    """Replace the record, and return once it survives a power failure."""
    noted = (machine, epoch, welcomed)
    database.execute("PRAGMA synchronous=FULL")
    try:
        database.execute("BEGIN IMMEDIATE")
        try:
            database.execute("DELETE FROM life")
            database.execute("INSERT INTO life VALUES (?, ?, ?, ?)", (*noted, _checksum(*noted)))
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
    finally:
        database.execute("PRAGMA synchronous=NORMAL")
