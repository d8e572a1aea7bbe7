"""Counts the records of an encoded batch before it is decoded.

An empty record takes two bytes of a message, and a hundred times as much when it is decoded.
"""

from __future__ import annotations

from perfd.errors import BatchError
from perfd.wire import fields

MAX_RECORDS = 100_000
"""As many as an agent has pending at most."""
UNCHECKED_BYTES = 64 * 1024
"""Messages up to this size are decoded as they are: 32,768 empty records fit."""
_BATCH, _SEQUENCE, _SAMPLES, _RECORDS = 2, 1, 3, 4
"""Fields of an `AgentMessage` and a `Batch` (telemetry.proto)."""


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
            field, wire_type, position = fields.tag(agent_message, position)
            end = fields.skipped(agent_message, wire_type, position)
            if field == _BATCH and wire_type == fields.BYTES:
                _, position = fields.varint(agent_message, position)
                records = _counted(agent_message, position, end, records)
            position = end
    except IndexError:
        # It ends too early, which decoding it says in words.
        return


def _counted(data: bytes, position: int, end: int, records: int) -> int:
    """`records` and those of the batch from `position` to `end`."""
    sequence = 0
    while position < end:
        field, wire_type, position = fields.tag(data, position)
        if wire_type == fields.VARINT and field == _SEQUENCE:
            sequence, _ = fields.varint(data, position)
        position = fields.skipped(data, wire_type, position)
        records += wire_type == fields.BYTES and field in {_SAMPLES, _RECORDS}
        if records > MAX_RECORDS:
            raise BatchError(f"A batch holds more than {MAX_RECORDS} records.", sequence=sequence)
    return records
