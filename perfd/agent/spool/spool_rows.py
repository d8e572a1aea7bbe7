"""Batches as rows of the spool's file, each with a checksum that a flipped bit does not pass."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """A batch as it was read."""

    sequence: int
    records: int
    payload: bytes
    sound: bool
    """Whether its checksum is right."""


def read_after(database: sqlite3.Connection, sequence: int, limit: int) -> Sequence[Row]:
    """The oldest rows after a sequence, in order; raises `sqlite3.Error`."""
    # A damaged row may hold values of another type than was written.
    found = database.execute(
        "SELECT sequence, CAST(records AS INTEGER), CAST(payload AS BLOB), CAST(crc32 AS INTEGER)"
        " FROM batch WHERE sequence > ? ORDER BY sequence LIMIT ?",
        (sequence, limit),
    ).fetchall()
    return [
        Row(number, records, payload, checksum == _checksum(number, records, payload))
        for number, records, payload, checksum in found
    ]


def add_checksums(database: sqlite3.Connection) -> None:
    """Fill in the checksums of all rows, in a file from a perfd without them; raises `sqlite3.Error`."""
    database.create_function("perfd_checksum", 3, _checksum, deterministic=True)
    database.execute(
        "UPDATE batch SET crc32 = perfd_checksum(sequence, CAST(records AS INTEGER), CAST(payload AS BLOB))"
    )


def insert(database: sqlite3.Connection, batches: Iterable[tuple[int, int, bytes]]) -> None:
    """Store batches: sequence, number of records, payload; raises `sqlite3.Error`."""
    database.executemany(
        "INSERT INTO batch (sequence, records, payload, crc32) VALUES (?, ?, ?, ?)",
        [(*batch, _checksum(*batch)) for batch in batches],
    )


def delete_through(database: sqlite3.Connection, sequence: int) -> tuple[int, int, int]:
    """Delete up to and including a sequence; returns batches, bytes and records. Raises `sqlite3.Error`."""
    batches, size, records = database.execute(
        "SELECT count(*), coalesce(sum(length(payload)), 0), coalesce(sum(records), 0)"
        " FROM batch WHERE sequence <= ?",
        (sequence,),
    ).fetchone()
    database.execute("DELETE FROM batch WHERE sequence <= ?", (sequence,))
    return batches, size, records


def delete_oldest(database: sqlite3.Connection, excess_bytes: int) -> tuple[int, int, int]:
    """Delete the oldest until this many bytes are free; returns and raises as `delete_through`."""
    if excess_bytes <= 0:
        return 0, 0, 0
    through = 0
    for sequence, size in database.execute("SELECT sequence, length(payload) FROM batch ORDER BY sequence"):
        through = sequence
        excess_bytes -= size
        if excess_bytes <= 0:
            break
    return delete_through(database, through)


def _checksum(sequence: int, records: int, payload: bytes) -> int:
    # Over the numbers too: either may be damaged, and the aggregator trusts both.
    return zlib.crc32(payload, zlib.crc32(b"%d %d" % (sequence, records)))
