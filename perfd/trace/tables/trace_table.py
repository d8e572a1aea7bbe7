"""A table of a trace: columns with units, and rows of plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps

from perfd.trace.model.rank_trace import RankTrace

Cell = str | int | float | None
"""None for unknown."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column; its name ends in its unit, so that JSON and CSV need no other."""

    name: str
    unit: str = ""
    """`s`, `bytes`, `bytes/s`, `ratio`, `count`, `number` without a unit; empty for text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTable:
    """One table, the row with the most time first."""

    name: str
    title: str
    columns: Sequence[TableColumn]
    rows: Sequence[tuple[Cell, ...]]
    missing: str = ""
    """Why there are no rows, if there are none."""


_UNITS = {"_bytes_per_s": "bytes/s", "_s": "s", "_bytes": "bytes", "_ratio": "ratio", "_count": "count"}
"""By the end of a column's name, the longest first."""
_COUNTS = frozenset(
    {"rank", "stream", "priority", "position", "count", "mean_length", "median_length", "max_length"}
)
_NUMBERS = frozenset({"payload_min", "payload_mean", "payload_max"})


def named(names: str) -> tuple[TableColumn, ...]:
    """Columns by their names, with spaces between, and with the units that these state; others hold text."""
    return tuple(TableColumn(name, _unit(name)) for name in names.split())


def _unit(name: str) -> str:
    if name in _COUNTS:
        return "count"
    if name in _NUMBERS:
        return "number"
    return next((unit for end, unit in _UNITS.items() if f"_{name}".endswith(end)), "")


def table_of_ranks(
    name: str, title: str, columns: Sequence[TableColumn], *, missing: str = ""
) -> Callable[
    [Callable[[RankTrace], Iterable[tuple[Cell, ...]]]], Callable[[Sequence[RankTrace]], TraceTable]
]:
    """Makes what gives the rows of one rank into what gives the table of all."""

    def of_all(
        rows: Callable[[RankTrace], Iterable[tuple[Cell, ...]]],
    ) -> Callable[[Sequence[RankTrace]], TraceTable]:
        @wraps(rows)
        def table(traces: Sequence[RankTrace]) -> TraceTable:
            found = [row for trace in traces for row in rows(trace)]
            return TraceTable(name=name, title=title, columns=columns, rows=found, missing=missing)

        return table

    return of_all
