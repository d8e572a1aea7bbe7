"""Reads SQLite's b-tree pages without SQLite, which reads nothing below a damaged page.

The format is described at https://sqlite.org/fileformat2.html. Everything here takes any bytes, and gives
what is sound in them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Value = int | float | str | bytes | None

MAX_ROW_BYTES = 64 << 20
"""Nothing larger is ever written (`MAX_QUEUED_BYTES`)."""
_MAX_HEADER_BYTES = 256
"""Of a record: 28 columns of any size, more than a table has."""
_INNER_INDEX, _INNER_TABLE, _LEAF_INDEX, _LEAF_TABLE = 2, 5, 10, 13
"""First byte of a page of a b-tree (SQLite's file format, section 1.6)."""
_KINDS = (_LEAF_INDEX, _LEAF_TABLE, _INNER_INDEX)
_FILE_HEADER_BYTES = 100
"""Size of the header of an SQLite file (SQLite's file format, section 1.3)."""
_DEFAULT_PAGE_BYTES = 4096
"""SQLite's default since 3.12, with which perfd's files are created."""
_LEAST_USABLE_BYTES = 480
"""Of a page, without what extensions reserve (SQLite's file format, section 1.3.4)."""
_SIZES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
"""Of numbers, by serial type."""
_DAMAGED = (ValueError, IndexError, struct.error)


class StoredRow(NamedTuple):
    """A record as it is stored: the columns of the key first if the table has no row ids."""

    rowid: int | None
    values: Sequence[Value]


@dataclass(frozen=True, slots=True)
class PageRows:
    """What one page holds."""

    cells: int
    """How many rows the page says that it has."""
    rows: Sequence[StoredRow]
    """Those that can be read."""


def page_layout(header: bytes) -> tuple[int, int]:
    """The size of a page and how much of it is used, in bytes; what perfd writes if the header is damaged."""
    if len(header) < _FILE_HEADER_BYTES:
        return _DEFAULT_PAGE_BYTES, _DEFAULT_PAGE_BYTES
    size = int.from_bytes(header[16:18], "big")
    size = 65_536 if size == 1 else size
    if size < 512 or size & (size - 1):
        size = _DEFAULT_PAGE_BYTES
    usable = size - header[20]
    return size, usable if usable >= _LEAST_USABLE_BYTES else size


class DatabasePages:
    """Reads pages by their numbers, from 1 on; `read` returns a page, or less if it is not there.

    Memory is two bytes a page and one row of at most `MAX_ROW_BYTES`. No overflow page is read twice.
    """

    def __init__(self, read: Callable[[int], bytes], count: int, page_bytes: int, usable_bytes: int) -> None:
        self._read = read
        self._page_bytes = page_bytes
        self._usable_bytes = usable_bytes
        self.count = count
        self._overflow = bytearray(count + 1)
        self._unreadable = bytearray(count + 1)

    @property
    def unreadable_pages(self) -> int:
        """Of the pages read so far, those that should hold rows and of which nothing can be read."""
        return sum(map(int.__gt__, self._unreadable, self._overflow))

    def free_pages(self) -> tuple[set[int], bool]:
        """The pages that nothing is in any more, and whether these are all of them."""
        header = self._read(1)[:_FILE_HEADER_BYTES]
        if len(header) < _FILE_HEADER_BYTES:
            return set(), False
        trunk, total = struct.unpack_from(">II", header, 32)
        free: set[int] = set()
        while 0 < trunk <= self.count and trunk not in free:
            free.add(trunk)
            page = self._read(trunk)
            if len(page) < self._usable_bytes:
                return free, False
            trunk, leaves = struct.unpack_from(">II", page)
            if leaves > self._usable_bytes // 4 - 2:
                return free, False
            free.update(struct.unpack_from(f">{leaves}I", page, 8))
        return free, trunk == 0 and len(free) == total and all(0 < number <= self.count for number in free)

    def used_pages(self) -> Iterator[int]:
        """The pages that may hold rows.

        Pages below a damaged one belong to no tree. If the list of free pages is damaged, too, they look like
        pages of deleted rows, which must not come back: then these are pages of trees only.
        """
        free, whole = self.free_pages()
        # SQLite locks this page and stores nothing in it.
        free.add((1 << 30) // self._page_bytes + 1)
        for number in range(1, self.count + 1) if whole else self._tree_pages():
            if number not in free:
                yield number

    def rows(self, number: int) -> PageRows:
        """The rows of a page; none of a page that holds no rows."""
        page = self._read(number)
        if len(page) < self._usable_bytes:
            self._unreadable[number] = 1
            return PageRows(0, ())
        begin = _FILE_HEADER_BYTES if number == 1 else 0
        stated = page[begin]
        best = self._rows(page, begin, stated)
        # A flipped bit turns one kind into another, or into none; rows show it. Overflow pages begin with 0.
        if stated and not best.rows and (best.cells or stated not in _KINDS):
            tried = [self._rows(page, begin, kind) for kind in _KINDS if (kind ^ stated).bit_count() == 1]
            best = max([best, *tried], key=lambda found: len(found.rows))
        if not best.rows and (best.cells or stated not in {*_KINDS, _INNER_TABLE}):
            self._unreadable[number] = 1
        return best

    def _rows(self, page: bytes, begin: int, kind: int) -> PageRows:
        if kind not in _KINDS:
            return PageRows(0, ())
        pointers = self._pointers(page, begin, kind)
        rows = [row for at in pointers if (row := self._cell(page, at, kind)) is not None]
        return PageRows(len(pointers), rows)

    def _pointers(self, page: bytes, begin: int, kind: int) -> Sequence[int]:
        first = begin + (12 if kind in {_INNER_INDEX, _INNER_TABLE} else 8)
        # A damaged count is cut to what fits.
        cells = min(int.from_bytes(page[begin + 3 : begin + 5], "big"), (self._usable_bytes - first) // 6)
        return struct.unpack_from(f">{cells}H", page, first)

    def _cell(self, page: bytes, at: int, kind: int) -> StoredRow | None:
        try:
            if kind == _INNER_INDEX:
                at += 4
            size, at = _varint(page, at)
            rowid = None
            if kind == _LEAF_TABLE:
                rowid, at = _varint(page, at)
                rowid -= (rowid >> 63) << 64
            return StoredRow(rowid, _record(self._payload(page, at, size, of_table=kind == _LEAF_TABLE)))
        except _DAMAGED:
            return None

    def _payload(self, page: bytes, at: int, size: int, *, of_table: bool) -> bytes:
        usable = self._usable_bytes
        most = usable - 35 if of_table else (usable - 12) * 64 // 255 - 23
        if size <= most:
            if at + size > usable:
                raise ValueError("The row goes on after the end of its page.")
            return page[at : at + size]
        if size > MAX_ROW_BYTES:
            raise ValueError("The row is too large.")
        least = (usable - 12) * 32 // 255 - 23
        local = least + (size - least) % (usable - 4)
        local = local if local <= most else least
        if at + local + 4 > usable:
            raise ValueError("The row goes on after the end of its page.")
        return self._overflowing(
            page[at : at + local], int.from_bytes(page[at + local : at + local + 4]), size
        )

    def _overflowing(self, begin: bytes, number: int, size: int) -> bytes:
        parts, left = [begin], size - len(begin)
        while left > 0:
            if not 0 < number <= self.count or self._overflow[number]:
                raise ValueError("The row goes on in a page that is not its own.")
            page = self._read(number)
            part = page[4 : min(self._usable_bytes, 4 + left)]
            if len(page) < self._usable_bytes:
                raise ValueError("The row goes on after the end of the file.")
            self._overflow[number] = 1
            parts.append(part)
            left -= len(part)
            number = int.from_bytes(page[:4])
        return b"".join(parts)

    def _tree_pages(self) -> Iterator[int]:
        """The pages of all trees, from the table of tables on."""
        seen = bytearray(self.count + 1)
        left = [(1, True)]
        while left:
            number, lists_tables = left.pop()
            if not 0 < number <= self.count or seen[number]:
                continue
            seen[number] = 1
            yield number
            page = self._read(number)
            if len(page) < self._usable_bytes:
                continue
            begin = _FILE_HEADER_BYTES if number == 1 else 0
            kind = page[begin]
            if kind in {_INNER_INDEX, _INNER_TABLE}:
                children = [int.from_bytes(page[begin + 8 : begin + 12])]
                children += (int.from_bytes(page[at : at + 4]) for at in self._pointers(page, begin, kind))
                left += ((child, lists_tables) for child in children)
            elif lists_tables:
                roots = (row.values[3] for row in self._rows(page, begin, kind).rows if len(row.values) == 5)
                left += ((root, False) for root in roots if isinstance(root, int))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where it ends."""
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for place in range(at + 1, at + 8):
        byte = data[place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + 1
    return value << 8 | data[at + 8], at + 9


def _record(payload: bytes) -> tuple[Value, ...]:
    """The columns of a record; raises one of `_DAMAGED` unless it ends where it should."""
    header_bytes, at = _varint(payload, 0)
    if not at <= header_bytes <= min(len(payload), _MAX_HEADER_BYTES):
        raise ValueError("The header of the record is damaged.")
    values: list[Value] = []
    begin = header_bytes
    while at < header_bytes:
        serial, at = _varint(payload, at)
        end = begin + (_SIZES[serial] if serial < 12 else (serial - 12) >> 1)
        if end > len(payload):
            raise ValueError("A column goes on after the end of the record.")
        if serial == 0:
            values.append(None)
        elif serial < 7:
            values.append(int.from_bytes(payload[begin:end], "big", signed=True))
        elif serial == 7:
            values.append(struct.unpack_from(">d", payload, begin)[0])
        elif serial < 10:
            values.append(serial - 8)
        else:
            values.append(payload[begin:end].decode() if serial & 1 else payload[begin:end])
        begin = end
    if at != header_bytes or begin != len(payload):
        raise ValueError("The record is longer than its columns.")
    return tuple(values)
