"""Counts the records of an encoded batch before it is decoded.

An empty record takes two bytes of a message, and a hundred times as much when it is decoded.
"""

from __future__ import annotations

from perfd.errors import BatchError

MAX_RECORDS = 100_000
"""As many as an agent has pending at most."""
UNCHECKED_BYTES = 64 * 1024
"""Messages up to this size are decoded as they are: 32,768 empty records fit."""
_BATCH, _SEQUENCE, _SAMPLES, _RECORDS = 2, 1, 3, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def check_record_count(agent_message: bytes) -> None:
    """Raise `BatchError` when a message holds a batch of more records than an agent sends at once."""
    if len(agent_message) <= UNCHECKED_BYTES:
        return
    try:
        field, wire_type, position = _tag(agent_message, 0)
        if field != _BATCH or wire_type != _BYTES:
            return
        _, position = _varint(agent_message, position)
        _check_batch(agent_message, position)
    except IndexError:
        # It ends too early, which decoding it says in words.
        return


def _check_batch(data: bytes, position: int) -> None:
    records = sequence = 0
    while position < len(data):
        field, wire_type, position = _tag(data, position)
        if wire_type == _VARINT:
            value, position = _varint(data, position)
            if field == _SEQUENCE:
                sequence = value
        elif wire_type == _BYTES:
            size, position = _varint(data, position)
            position += size
            records += field in {_SAMPLES, _RECORDS}
            if records > MAX_RECORDS:
                raise BatchError(f"A batch holds more than {MAX_RECORDS} records.", sequence=sequence)
        elif wire_type in {_FIXED64, _FIXED32}:
            position += 8 if wire_type == _FIXED64 else 4
        else:
            return


def _tag(data: bytes, position: int) -> tuple[int, int, int]:
    tag, position = _varint(data, position)
    return tag >> 3, tag & 7, position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > 63:
            raise IndexError(position)
