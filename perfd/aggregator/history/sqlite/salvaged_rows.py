"""Which table a row of a damaged file belongs to: the one that its values fit."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

from perfd.aggregator.history.sqlite.page_format import DatabasePages, StoredRow, Value, page_layout
from perfd.aggregator.history.sqlite.sqlite_tables import ADDED_COLUMNS, FACT_KINDS, MEMORY_KINDS, SCHEMA
from perfd.aggregator.history.sqlite.wal_frames import committed_pages

_TYPES: Mapping[str, frozenset[type]] = {
    "TEXT": frozenset({str}),
    "BLOB": frozenset({bytes}),
    "INTEGER": frozenset({int}),
    # A whole number takes less room as an integer.
    "REAL": frozenset({float, int}),
}
_KINDS = {"node_facts": FACT_KINDS, "node_memory": MEMORY_KINDS}
"""What is in the second column of tables that have the same columns."""


@dataclass(frozen=True, slots=True)
class SalvagedPage:
    """The rows of one page, in the order of the table's columns."""

    number: int
    table: str
    rows: Sequence[tuple[Value, ...]]
    lost_rows: int
    """Rows of the page that cannot be read."""


class DamagedFile:
    """The pages of a damaged file and of the log beside it; read once, with `salvage`."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError`."""
        self._files = contextlib.ExitStack()
        try:
            self._main = self._open(path)
            self._page_bytes, usable_bytes = page_layout(os.pread(self._main, 100, 0))
            self._in_log: dict[int, int] = {}
            log = path.with_name(f"{path.name}-wal")
            if log.exists():
                self._log = self._open(log)
                self._in_log = committed_pages(self._read_log, self._page_bytes)
            count = max([os.fstat(self._main).st_size // self._page_bytes, *self._in_log])
            self._reader = DatabasePages(self._read, count, self._page_bytes, usable_bytes)
        except BaseException:
            self._files.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    @property
    def unreadable_pages(self) -> int:
        """Pages of which nothing could be read; how many rows they had is not known."""
        return self._reader.unreadable_pages

    def salvage(self) -> Iterator[SalvagedPage]:
        """What can be read, page by page; a damaged page costs its own rows at most. Raises `OSError`."""
        return salvaged_pages(self._reader)

    def _open(self, path: Path) -> int:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._files.callback(os.close, file)
        return file

    def _read(self, number: int) -> bytes:
        if (offset := self._in_log.get(number)) is not None:
            return self._read_log(offset, self._page_bytes)
        return os.pread(self._main, self._page_bytes, (number - 1) * self._page_bytes)

    def _read_log(self, offset: int, size: int) -> bytes:
        return os.pread(self._log, size, offset)


def salvaged_pages(reader: DatabasePages) -> Iterator[SalvagedPage]:
    """The rows of all pages that fit a table."""
    shapes: defaultdict[tuple[bool, int], list[_Shape]] = defaultdict(list)
    for shape in _shapes():
        for width in shape.widths:
            shapes[shape.has_rowid, width].append(shape)
    for number in reader.used_pages():
        found = reader.rows(number)
        fitting = [
            (shape, row)
            for row in found.rows
            for shape in shapes.get((row.rowid is not None, len(row.values)), ())
            if shape.fits(row.values)
        ]
        if fitting:
            # All rows of a page are of one table; one that fits another has changed.
            [(table, _)] = Counter(shape.table for shape, _ in fitting).most_common(1)
            rows = [shape.row(row) for shape, row in fitting if shape.table == table]
            # Most of a page of an index fit no table.
            if 2 * len(rows) >= len(found.rows):
                yield SalvagedPage(number, table, rows, found.cells - len(rows))


class _Shape:
    """What the records of a table look like."""

    def __init__(self, table: str, columns: Sequence[tuple[Any, ...]], *, has_rowid: bool) -> None:
        """`columns` as `PRAGMA table_info` has them."""
        self.table = table
        self.has_rowid = has_rowid
        keys = sorted((column for column in columns if column[5]), key=itemgetter(5))
        stored = columns if has_rowid else [*keys, *(column for column in columns if not column[5])]
        self._types = [_stored_types(column, is_rowid=has_rowid and bool(column[5])) for column in stored]
        self._declared = [[column[0] for column in stored].index(place) for place in range(len(columns))]
        self._rowid = keys[0][0] if has_rowid and keys else None
        self._defaults = ADDED_COLUMNS.get(table, ())
        self._kinds = _KINDS.get(table)
        self.widths = range(len(columns) - len(self._defaults), len(columns) + 1)

    def fits(self, values: Sequence[Value]) -> bool:
        """Whether a record of one of the `widths` may be a row of the table."""
        return (self._kinds is None or values[1] in self._kinds) and all(
            type(value) in types for value, types in zip(values, self._types, strict=False)
        )

    def row(self, row: StoredRow) -> tuple[Value, ...]:
        """A record that fits, in the order of the table's columns."""
        missing = len(self._types) - len(row.values)
        values = [*row.values, *self._defaults[len(self._defaults) - missing :]]
        if self._rowid is not None:
            values[self._rowid] = row.rowid
        return tuple([values[place] for place in self._declared])


def _stored_types(column: tuple[Any, ...], *, is_rowid: bool) -> frozenset[type]:
    _, _, declared, required, _, in_key = column
    if is_rowid:
        # It is beside the record.
        return frozenset({type(None)})
    types = _TYPES[declared]
    return types if required or in_key else types | {type(None)}


def _shapes() -> list[_Shape]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        tables = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        return [
            _Shape(
                table,
                connection.execute(f"PRAGMA table_info({table})").fetchall(),
                has_rowid="WITHOUT ROWID" not in sql,
            )
            for table, sql in tables
        ]
