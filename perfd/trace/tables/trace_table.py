"""A table of a trace: columns with units, and rows of plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


RANK = TableColumn("rank", "count")
