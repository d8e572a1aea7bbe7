"""Which part of a large export is read, so that the memory it needs does not grow with the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

MAX_RECORDS = 12_000_000
"""About 0.5 GB when it is analyzed."""
_WEIGHTS: Mapping[str, int] = {
    **dict.fromkeys(
        (
            "CUPTI_ACTIVITY_KIND_KERNEL",
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            "CUPTI_ACTIVITY_KIND_MEMSET",
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            "CUPTI_ACTIVITY_KIND_RUNTIME",
        ),
        1,
    ),
    # Ranges are objects, not numbers in columns.
    "NVTX_EVENTS": 4,
}
_OF_TABLES_ONLY = ("OSRT_API", "CUDNN_EVENTS", "CUBLAS_EVENTS", "PROFILER_OVERHEAD")
"""Smaller, or read for tables alone."""
_SAMPLES = 20_000
"""Rows from which the density of records over time is estimated."""
_RANGES = (59, 60)
"""Event types of NVTX ranges (nsys' ENUM_NSYS_EVENT_TYPE)."""
_MAX_TIME_NS = 10**17
"""Three years: larger times are damage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadWindow:
    """Times between which records begin that are read; of ranges those that overlap it."""

    start_ns: int
    end_ns: int
    records: int
    """How many the export has, each table as often as it weighs."""
    first_ns: int
    last_ns: int
    """When the records of the export begin: the first and the last, of some thousands."""

    @property
    def note(self) -> str:
        """What a reader of the analysis should know."""
        read, there = (
            " to ".join(f"{time_ns / 1e9:.1f}" for time_ns in times)
            for times in ((self.start_ns, self.end_ns), (self.first_ns, self.last_ns))
        )
        return (
            f"The export has {self.records / 1e6:.1f} million records, more than are read at once: read were"
            f" those from {read} s, of {there} s. A shorter capture is read whole."
        )


def limited(connection: sqlite3.Connection, tables: Container[str]) -> ReadWindow | None:
    """The window of an export with more than `MAX_RECORDS` records, in the middle of its records.

    From then on each query of `connection` finds the records of that window only. None, and no change, for a
    smaller export.
    """
    rows = {
        table: connection.execute(f"SELECT MAX(rowid) FROM {table}").fetchone()[0] or 0  # noqa: S608
        for table in _WEIGHTS
        if table in tables
    }
    records = sum(_WEIGHTS[table] * count for table, count in rows.items())
    if records <= MAX_RECORDS:
        return None
    starts = sorted(
        start
        for table, count in rows.items()
        for start in _sample(connection, table, count, _SAMPLES * _WEIGHTS[table] * count // records)
    )
    if not starts:
        return None
    left_out = 0.5 - MAX_RECORDS / records / 2
    window = ReadWindow(
        start_ns=starts[int(left_out * len(starts))],
        end_ns=starts[min(len(starts) - 1, int((1 - left_out) * len(starts)))],
        records=records,
        first_ns=starts[0],
        last_ns=starts[-1],
    )
    for table in (*_WEIGHTS, *_OF_TABLES_ONLY):
        if table in tables:
            _show_within(connection, table, window)
    return window


def _sample(connection: sqlite3.Connection, table: str, count: int, wanted: int) -> Iterator[int]:
    """Starts of rows all over a table; the order of rows means nothing."""
    for at in range(wanted):
        row = connection.execute(
            f"SELECT start FROM {table} WHERE rowid = ?",  # noqa: S608
            (1 + at * count // wanted,),
        ).fetchone()
        if row and isinstance(row[0], int) and abs(row[0]) < _MAX_TIME_NS:
            yield row[0]


def _show_within(connection: sqlite3.Connection, table: str, window: ReadWindow) -> None:
    """A view of the table, which hides it: temporary names come first."""
    first, last = window.start_ns, window.end_ns
    within = f"start >= {first} AND start < {last}"
    if table == "NVTX_EVENTS":
        within = f'eventType NOT IN {_RANGES} OR start < {last} AND "end" > {first}'
    connection.execute(f"CREATE TEMP VIEW {table} AS SELECT * FROM main.{table} WHERE {within}")  # noqa: S608
