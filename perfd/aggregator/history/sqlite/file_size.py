"""The size of the history file, and what leaves it when it is too large."""

from __future__ import annotations

import sqlite3

_KEEP_RATIO = 0.9
"""A file that is too large is brought down to this share of the bound, so that it is not cut each minute."""
_MOST_CUTS = 10_000
"""Rounds of deletion, so that a file that does not shrink ends the loop."""


def used_bytes(connection: sqlite3.Connection) -> int:
    """The size of what is in the file, without pages that are free."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def shrink(connection: sqlite3.Connection, max_bytes: int) -> bool:
    """Delete the attempts of jobs, longest silent first, until the rest fits; True if any was deleted.

    Of the last attempt that is left, the older half of its rows goes, as often as needed.
    """
    if used_bytes(connection) <= max_bytes:
        return False
    for _ in range(_MOST_CUTS):
        if used_bytes(connection) <= max_bytes * _KEEP_RATIO or not _cut(connection):
            break
    return True


def _cut(connection: sqlite3.Connection) -> bool:
    """Delete a part of the history in one transaction; False when there is nothing left to delete."""
    attempts = connection.execute(
        "SELECT job, attempt FROM jobs ORDER BY received_unix_s, attempt LIMIT 2"
    ).fetchall()
    connection.execute("BEGIN")
    before = connection.total_changes
    if len(attempts) > 1:
        for table in ("steps", "phases", "events", "jobs"):
            connection.execute(f"DELETE FROM {table} WHERE job = ? AND attempt = ?", attempts[0])  # noqa: S608
    else:
        for table in ("steps", "phases"):
            connection.execute(
                f"DELETE FROM {table} WHERE step <= "  # noqa: S608  (constants)
                f"(SELECT step FROM {table} ORDER BY step LIMIT 1 OFFSET (SELECT count(*) / 2 FROM {table}))"
            )
        for table in ("events", "node_facts", "alerts", "captures"):
            time = {
                "events": "rowid",
                "node_facts": "received_unix_s",
                "alerts": "changed_unix_s",
                "captures": "requested_unix_s",
            }[table]
            connection.execute(
                f"DELETE FROM {table} WHERE {time} <= "  # noqa: S608  (constants)
                f"(SELECT {time} FROM {table} ORDER BY {time} LIMIT 1 "
                f"OFFSET (SELECT count(*) / 2 FROM {table}))"
            )
    connection.execute("COMMIT")
    return connection.total_changes > before
