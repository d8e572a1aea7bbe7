"""A table similar to an earlier one is read without decoding it, with the same result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wire import records

from perfd.errors import WireError
from perfd.model import SampleTable, Scope
from perfd.wire import sample_tables
from perfd.wire.sample_tables import TableReader, UnknownKindError, decode_table, encode_table
from perfd.wire.v1 import telemetry_pb2 as pb

TABLE = SampleTable(
    scope=Scope.GPU,
    times_unix_ns=[5, 6],
    entities=["0", "1"],
    columns={"power_w": [1.0, 2.0], "sm_active_ratio": [0.1, 0.2]},
)


def outcome(decode: Callable[[bytes], SampleTable], data: bytes) -> Any:
    """The table, or the error; numbers as text, because NaN is not equal to itself."""
    try:
        table = decode(data)
    except (WireError, UnknownKindError) as error:
        return type(error), str(error)
    columns = {name: repr(list(values)) for name, values in table.columns.items()}
    return table.scope, list(table.times_unix_ns), list(table.entities), columns


def reader_of(*tables: bytes) -> TableReader:
    reader = TableReader()
    for data in tables:
        reader.decode(data)
    return reader


@given(records.tables(), st.data())
def test_tables_that_differ_in_their_numbers_are_read_as_if_decoded(
    table: SampleTable, data: st.DataObject
) -> None:
    rows = len(table.times_unix_ns)

    def some(element: st.SearchStrategy[Any]) -> list[Any]:
        return data.draw(st.lists(element, min_size=rows, max_size=rows))

    other = replace(
        table,
        times_unix_ns=some(st.integers(-(2**63), 2**63 - 1)),
        columns={name: some(st.floats()) for name in table.columns},
    )
    encoded = encode_table(other)
    assert outcome(reader_of(encode_table(table)).decode, encoded) == outcome(decode_table, encoded)


@given(st.data())
@example(None)
def test_a_table_with_any_change_is_read_as_if_decoded(data: st.DataObject | None) -> None:
    encoded = encode_table(TABLE)
    reader = reader_of(encoded)
    for place in range(len(encoded)) if data is None else [data.draw(st.integers(0, len(encoded) - 1))]:
        changed = bytearray(encoded)
        changed[place] ^= 1 if data is None else data.draw(st.integers(1, 255))
        assert outcome(reader.decode, bytes(changed)) == outcome(decode_table, bytes(changed))


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_garbage_is_read_as_if_decoded(first: bytes, second: bytes) -> None:
    reader = TableReader()
    for data in (first, second, first):
        assert outcome(reader.decode, data) == outcome(decode_table, data)


def test_only_the_first_of_similar_tables_is_decoded() -> None:
    reader = reader_of(encode_table(TABLE))
    with patch.object(sample_tables, "decode_table", side_effect=AssertionError):
        read = reader.decode(encode_table(replace(TABLE, times_unix_ns=[7, 8])))
    assert list(read.times_unix_ns) == [7, 8]
    assert {name: list(values) for name, values in read.columns.items()} == dict(TABLE.columns)


def message_of(*columns: tuple[bytes, ...], times: bytes = bytes(8)) -> bytes:
    """A table of one row; each column has these `values` fields."""
    head = pb.SampleTable(scope=pb.SCOPE_GPU, times_unix_ns=times, entities=["0"], entity_of_row=[0])
    data = head.SerializeToString()
    for place, values in enumerate(columns):
        column = pb.SampleTable.Column(metric=f"m{place}").SerializeToString()
        column += b"".join(b"\x12" + bytes([len(value)]) + value for value in values)
        data += b"\x2a" + bytes([len(column)]) + column
    return data


def number(value: float) -> bytes:
    table = SampleTable(scope=Scope.GPU, times_unix_ns=[0], entities=["0"], columns={"m": [value]})
    return encode_table(table)[-8:]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # Repeated fields: the last one counts.
        (message_of((number(1), number(1))), message_of((number(2), number(3)))),
        (
            b"\x12\x08" + bytes(8) + message_of((number(1),)),
            b"\x12\x08" + number(1) + message_of((number(1),)),
        ),
        # Times after the columns.
        (
            b"\x2a\x0e\x0a\x02m0\x12\x08" + number(1) + message_of(),
            b"\x2a\x0e\x0a\x02m0\x12\x08" + number(2) + message_of(times=number(3)),
        ),
    ],
)
def test_tables_in_an_unusual_order_are_decoded_each_time(first: bytes, second: bytes) -> None:
    reader = reader_of(first)
    assert outcome(reader.decode, second) == outcome(decode_table, second)
    assert not isinstance(outcome(decode_table, second)[0], type)


def test_tables_that_always_differ_are_rarely_learned() -> None:
    reader = TableReader()
    with patch.object(sample_tables, "_form_of", wraps=sample_tables._form_of) as learned:
        for name in range(1_000):
            reader.decode(encode_table(replace(TABLE, entities=["0", f"{name:04}"])))
    assert learned.call_count <= 16 + 1_000 / 10 + 1


def test_streams_share_what_their_tables_have_in_common() -> None:
    first, second = (reader_of(encode_table(TABLE)) for _ in range(2))
    assert first._forms[0] is second._forms[0]


def test_a_table_with_half_a_time_is_refused() -> None:
    with pytest.raises(WireError, match="The last time of a gpu table has 1 bytes"):
        decode_table(pb.SampleTable(scope=pb.SCOPE_GPU, times_unix_ns=bytes(9)).SerializeToString())
