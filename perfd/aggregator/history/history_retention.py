"""What leaves the history: by age in time that the aggregator ran, and by the size of the file."""

from __future__ import annotations

import sqlite3

_EARLIEST_UNIX_S = 1_577_836_800.0
"""The first of January 2020: a clock before it was never set."""
_KEEP_RATIO = 0.9
"""A file that is too large is brought down to this share of the bound, so that it is not cut each minute."""
_MOST_CUTS = 10_000


class RetentionClock:
    """The time by which rows are old: it goes at most as fast as the aggregator runs.

    A clock that is set ahead, or was wrong at the start, makes nothing old at once. The time in which no
    aggregator runs does not count either.
    """

    def __init__(self, reached_unix_s: float | None) -> None:
        """`reached_unix_s` is how far an earlier process came, or None."""
        self._reached_unix_s = reached_unix_s
        self._at_s: float | None = None

    def now(self, unix_s: float, monotonic_s: float) -> float | None:
        """The time, given what both clocks say; None while it cannot be known."""
        if unix_s < _EARLIEST_UNIX_S:
            return None
        passed_s = 0.0 if self._at_s is None else max(0.0, monotonic_s - self._at_s)
        self._at_s = monotonic_s
        reached = unix_s if self._reached_unix_s is None else self._reached_unix_s + passed_s
        self._reached_unix_s = min(unix_s, reached)
        return self._reached_unix_s


def reached_unix_s(connection: sqlite3.Connection) -> float | None:
    """How far the time of retention came in this file; None in a new one."""
    row = connection.execute("SELECT unix_s FROM retention").fetchone()
    if row is None:
        # An older perfd wrote it: its newest rows are of a time that was reached.
        row = connection.execute("SELECT max(received_unix_s) FROM jobs").fetchone()
    return row[0] if isinstance(row[0], float) else None


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
