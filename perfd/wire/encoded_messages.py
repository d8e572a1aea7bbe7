"""Reads encoded messages without decoding them: where their fields are, and how many records a batch has.

An empty record takes two bytes of a message, and a hundred times as much when it is decoded.
"""

from __future__ import annotations

from perfd.errors import BatchError, WireError

MAX_RECORDS = 100_000
"""As many as an agent has pending at most."""
UNCHECKED_BYTES = 64 * 1024
"""Messages up to this size are decoded as they are: 32,768 empty records fit."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""
_BATCH, _SEQUENCE, _SAMPLES, _RECORDS = 2, 1, 3, 4
"""Fields of an `AgentMessage` and a `Batch` (telemetry.proto)."""


def tag(data: bytes, position: int) -> tuple[int, int, int]:
    """A field's number, its type, and the position of its value; like all here, IndexError if truncated."""
    number, position = varint(data, position)
    return number >> 3, number & 7, position


def skipped(data: bytes, wire_type: int, position: int) -> int:
    """The position after a field's value."""
    if wire_type == VARINT:
        return varint(data, position)[1]
    if wire_type == BYTES:
        size, position = varint(data, position)
        return position + size
    if wire_type in {FIXED64, FIXED32}:
        return position + (8 if wire_type == FIXED64 else 4)
    raise WireError(f"A message holds a field of wire type {wire_type}, which perfd does not send.")


def varint(data: bytes, position: int) -> tuple[int, int]:
    """An integer and the position after it."""
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
            field, wire_type, position = tag(agent_message, position)
            end = skipped(agent_message, wire_type, position)
            if field == _BATCH and wire_type == BYTES:
                _, position = varint(agent_message, position)
                records = _counted(agent_message, position, end, records)
            position = end
    except IndexError:
        # It ends too early, which decoding it says in words.
        return


def _counted(data: bytes, position: int, end: int, records: int) -> int:
    """`records` and those of the batch from `position` to `end`."""
    sequence = 0
    while position < end:
        field, wire_type, position = tag(data, position)
        if wire_type == VARINT and field == _SEQUENCE:
            sequence, _ = varint(data, position)
        position = skipped(data, wire_type, position)
        records += wire_type == BYTES and field in {_SAMPLES, _RECORDS}
        if records > MAX_RECORDS:
            raise BatchError(f"A batch holds more than {MAX_RECORDS} records.", sequence=sequence)
    return records
