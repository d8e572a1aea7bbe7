"""Counts the records of an encoded batch before it is decoded.

An empty record takes two bytes of a message, and a hundred times as much when it is decoded.
"""

from __future__ import annotations

from perfd.errors import BatchError, WireError

MAX_RECORDS = 100_000
"""As many as an agent has pending at most."""
UNCHECKED_BYTES = 64 * 1024
"""Messages up to this size are decoded as they are: 32,768 empty records fit."""
_BATCH, _SEQUENCE, _SAMPLES, _RECORDS = 2, 1, 3, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def check_record_count(agent_message: bytes) -> None:
    """Raise `BatchError` when a message holds a batch of more records than an agent sends at once.

    Raises `WireError` for fields that cannot be skipped.
    """
    if len(agent_message) <= UNCHECKED_BYTES:
        return
    records = 0
    try:
        position = 0
        while position < len(agent_message):
            # Protobuf merges a batch that is there twice, and skips fields that it does not know.
            field, wire_type, position = _tag(agent_message, position)
            end = _skipped(agent_message, wire_type, position)
            if field == _BATCH and wire_type == _BYTES:
                _, position = _varint(agent_message, position)
                records = _counted(agent_message, position, end, records)
            position = end
    except IndexError:
        # It ends too early, which decoding it says in words.
        return


def _counted(data: bytes, position: int, end: int, records: int) -> int:
    """`records` and those of the batch from `position` to `end`."""
    sequence = 0
    while position < end:
        field, wire_type, position = _tag(data, position)
        if wire_type == _VARINT and field == _SEQUENCE:
            sequence, _ = _varint(data, position)
        position = _skipped(data, wire_type, position)
        records += wire_type == _BYTES and field in {_SAMPLES, _RECORDS}
        if records > MAX_RECORDS:
            raise BatchError(f"A batch holds more than {MAX_RECORDS} records.", sequence=sequence)
    return records


def _skipped(data: bytes, wire_type: int, position: int) -> int:
    """The position after a field's value."""
    if wire_type == _VARINT:
        return _varint(data, position)[1]
    if wire_type == _BYTES:
        size, position = _varint(data, position)
        return position + size
    if wire_type in {_FIXED64, _FIXED32}:
        return position + (8 if wire_type == _FIXED64 else 4)
    raise WireError(f"A message holds a field of wire type {wire_type}, which perfd does not send.")


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
