"""Encodes and decodes tables of samples; columns stay blocks of numbers."""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass
from enum import StrEnum
from struct import Struct
from typing import Any
from weakref import WeakValueDictionary

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import DecodeError

from perfd.errors import WireError
from perfd.model import ColumnBlock, SampleTable, Scope
from perfd.protobuf_encoding import BYTES, read_tag, read_varint, skip_value
from perfd.wire.v1 import telemetry_pb2 as pb


class UnknownKindError(Exception):
    """A newer peer used an unknown kind; the record is skipped."""


class TooLongError(Exception):
    """A record holds more than is kept of one; it is left out, and counted by the bound."""

    def __init__(self, bound: str) -> None:
        super().__init__(bound)
        self.bound = bound


def enum_by_name(kind: type[StrEnum], descriptor: EnumDescriptor) -> dict[StrEnum, int]:
    """Numbers on the wire by member: `CaptureTool.PY_SPY` is `CAPTURE_TOOL_PY_SPY` there."""
    prefix = descriptor.values[0].name.removesuffix("UNSPECIFIED")
    return {member: descriptor.values_by_name[prefix + member.name].number for member in kind}


_MAX_COLUMNS = 1_024
"""Per table; collectors have about a hundred."""
_MAX_ROWS = 65_536
"""Per table; collectors have one for each GPU, interface, disk or rank of a node."""
_NUMBER_BYTES = 8
"""Size of a value and of a time: 64 bits each."""
_TIMES, _COLUMNS, _VALUES = 2, 5, 2
"""Fields of a `SampleTable` and of a column (telemetry.proto)."""
_MAX_FORMS = 16
"""Per stream; an agent's collectors send about six kinds of tables."""
_MAX_FORM_BYTES = 16_384
"""Of a table whose form is learned: a form takes memory in proportion. Chosen."""
_LEARN_EVERY = 10
"""Tables between two learned forms, once there are many forms: learning takes as long as decoding a few
tables."""
_SCOPES: dict[Any, Any] = dict(enum_by_name(Scope, pb.Scope.DESCRIPTOR))
_SCOPE_OF_NUMBER = {number: scope for scope, number in _SCOPES.items()}


def encode_table(table: SampleTable) -> bytes:
    """The bytes of a table; raises `WireError`, TypeError, ValueError or OverflowError for wrong values."""
    rows = len(table.times_unix_ns)
    _check_rows("entities", len(table.entities), rows)
    for metric, values in table.columns.items():
        _check_rows(metric, len(values), rows)
    position = {entity: index for index, entity in enumerate(dict.fromkeys(table.entities))}
    return pb.SampleTable(
        scope=_SCOPES[table.scope],
        times_unix_ns=_little_endian(array("q", table.times_unix_ns)),
        entities=position,
        entity_of_row=[position[entity] for entity in table.entities],
        columns=[
            pb.SampleTable.Column(metric=metric, values=_little_endian(array("d", values)))
            for metric, values in table.columns.items()
        ],
    ).SerializeToString()


def decode_table(data: bytes) -> SampleTable:
    """The table in `data`; raises `WireError`, `TooLongError`, and `UnknownKindError` for a newer scope."""
    try:
        message = pb.SampleTable.FromString(data)
    except DecodeError as error:
        raise WireError(f"{len(data)} bytes are not a perfd.wire.v1.SampleTable: {error}.") from error
    scope = _SCOPE_OF_NUMBER.get(message.scope)
    if scope is None:
        raise UnknownKindError
    if len(message.columns) > _MAX_COLUMNS or len(message.times_unix_ns) > _MAX_ROWS * _NUMBER_BYTES:
        raise TooLongError("table_size")
    positions, names = message.entity_of_row[:], tuple(message.entities)
    rows, rest = divmod(len(message.times_unix_ns), _NUMBER_BYTES)
    if rest:
        raise WireError(f"The last time of a {scope} table has {rest} bytes.")
    _check_rows("entities", len(positions), rows)
    if positions and max(positions) >= len(names):
        raise WireError(
            f"A row of a {scope} table is about entity {max(positions)}, but {len(names)} are named."
        )
    blocks = {column.metric: column.values for column in message.columns}
    if len(blocks) != len(message.columns):
        raise WireError(f"A {scope} table holds a column twice.")
    for metric, block in blocks.items():
        _check_rows(metric, len(block) / _NUMBER_BYTES, rows)
    entities = tuple([names[position] for position in positions])
    return _table(scope, entities, tuple(blocks), message.times_unix_ns, b"".join(blocks.values()))


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class TableForm:
    """What tables that differ only in their numbers have in common."""

    scope: Scope
    entities: tuple[str, ...]
    metrics: tuple[str, ...]
    layout: Struct
    """Bytes around the numbers, times, bytes, values of a column, bytes, values, ... bytes."""
    around: tuple[bytes, ...]
    number_spans: tuple[tuple[int, int], ...]
    """Where the numbers are, from and to which byte: the times, then the values of each column."""

    def read(self, data: bytes) -> SampleTable | None:
        """The table in `data`; None if it differs in more than its numbers."""
        if len(data) != self.layout.size:
            return None
        parts = self.layout.unpack(data)
        if parts[::2] != self.around:
            return None
        return _table(self.scope, self.entities, self.metrics, parts[1], b"".join(parts[3::2]))


_SHARED: WeakValueDictionary[tuple[bytes, ...], TableForm] = WeakValueDictionary()
"""The nodes of a fleet send similar tables."""


class TableReader:
    """Decodes the tables of one stream as `decode_table` does, similar ones without reading each column.

    All bytes of a table but its numbers are compared with those of a table that was decoded before: where
    they are equal, so are scope, names, order and sizes. Not thread-safe.
    """

    __slots__ = "_forms", "_until_learning"

    def __init__(self) -> None:
        self._forms: list[TableForm] = []
        self._until_learning = 0

    def form_of_size(self, size_bytes: int) -> TableForm | None:
        """The form that a table of a size may have."""
        for form in self._forms:
            if form.layout.size == size_bytes:
                return form
        return None

    def decode(self, data: bytes) -> SampleTable:
        """The table in `data`; raises as `decode_table` does."""
        for form in self._forms:
            if (table := form.read(data)) is not None:
                self._until_learning -= 1
                return table
        table = decode_table(data)
        if self._until_learning <= 0 or len(self._forms) < _MAX_FORMS:
            if (learned := _form_of(data, table)) is not None:
                self._forms = [*self._forms[1 - _MAX_FORMS :], learned]
            self._until_learning = _LEARN_EVERY
        self._until_learning -= 1
        return table


def _form_of(data: bytes, table: SampleTable) -> TableForm | None:
    """The form of a table that was decoded; None if it has no numbers or is written in an unusual order."""
    columns = table.columns
    if len(data) > _MAX_FORM_BYTES or not table.times_unix_ns or not isinstance(columns, ColumnBlock):
        return None
    try:
        spans = _number_spans(data)
    except (IndexError, ValueError):
        return None
    # With rows, each column has values: one span each, or one of them has two and this is refused.
    if len(spans) != 1 + len(columns) or spans != sorted(spans):
        return None
    layout, end = "<", 0
    for start, stop in spans:
        layout += f"{start - end}s{stop - start}s"
        end = stop
    struct = Struct(f"{layout}{len(data) - end}s")
    around = struct.unpack(data)[::2]
    form = TableForm(table.scope, tuple(table.entities), columns.names, struct, around, tuple(spans))
    return _SHARED.setdefault(around, form)


def _number_spans(data: bytes) -> list[tuple[int, int]]:
    """Where the times of an encoded table are, and the values of each column."""
    times: list[tuple[int, int]] = []
    values: list[tuple[int, int]] = []
    position = 0
    while position < len(data):
        field, kind, position = read_tag(data, position)
        end = skip_value(data, kind, position)
        if kind == BYTES:
            _, position = read_varint(data, position)
            if field == _TIMES:
                times.append((position, end))
            elif field == _COLUMNS:
                while position < end:
                    inner, kind, position = read_tag(data, position)
                    stop = skip_value(data, kind, position)
                    if kind == BYTES and inner == _VALUES:
                        values.append((read_varint(data, position)[1], stop))
                    position = stop
        position = end
    return [*times, *values]


def _table(
    scope: Scope, entities: tuple[str, ...], metrics: tuple[str, ...], times: bytes, values: bytes
) -> SampleTable:
    return SampleTable(
        scope=scope,
        times_unix_ns=array("q", _native(times)),
        entities=entities,
        columns=ColumnBlock(metrics, _native(values), len(entities)),
    )


def _little_endian(numbers: array[Any]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _native(block: bytes) -> bytes:
    """Numbers from the wire in the byte order of this machine."""
    return _little_endian(array("q", block)) if sys.byteorder == "big" else block


def _check_rows(what: str, found: float, rows: int) -> None:
    if found != rows:
        raise WireError(f"The column {what!r} of a table has {found:g} values for {rows} rows.")
