"""Decodes what agents send, whole or but for its tables, once its records are counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from perfd.errors import BatchError, WireError
from perfd.model import AgentMessage
from perfd.protobuf_encoding import BYTES, VARINT, read_tag, read_varint, skip_value
from perfd.wire.convert import BATCH_FIELD, DecodeTable, from_wire, parse
from perfd.wire.sample_tables import decode_table
from perfd.wire.v1 import telemetry_pb2 as pb

MAX_RECORDS = 100_000
"""In a batch: as many as an agent has pending at most."""
_UNCOUNTED_BYTES = 64 * 1024
"""Messages up to this size are decoded as they are: 32,768 empty records fit."""
_SEQUENCE, _SAMPLES, _RECORD = 1, 3, 4
"""Fields of a `Batch` (telemetry.proto)."""


def decode_agent_message(data: bytes, tables: DecodeTable = decode_table) -> AgentMessage | None:
    """An agent's message, its tables decoded by `tables`; None for an unknown kind, from a newer agent.

    Raises `BatchError`, with the sequence, when only the records of a batch are invalid or too many.
    """
    return AgentEnvelope(data).decode(tables)


class AgentEnvelope:
    """An agent's message, parsed but for its tables; raises as `decode_agent_message`."""

    __slots__ = "_envelope", "tables"

    def __init__(self, data: bytes) -> None:
        check_record_count(data)
        self._envelope = parse(pb.AgentMessage, data)
        self.tables: Sequence[bytes] = tuple(self._envelope.batch.samples)
        """The tables of its batch, if it is one, in order."""

    def decode(self, tables: DecodeTable) -> AgentMessage | None:
        """The message; `tables` is called with each table, in order."""
        return cast("AgentMessage | None", from_wire(self._envelope, tables, self.tables))


def check_record_count(agent_message: bytes) -> None:
    """Raise `BatchError` when a message holds a batch of more records than an agent sends at once.

    An empty record takes two bytes of a message, and a hundred times as much when it is decoded. Raises
    `WireError` for fields that cannot be skipped.
    """
    if len(agent_message) <= _UNCOUNTED_BYTES:
        return
    records = position = 0
    try:
        while position < len(agent_message):
            # Protobuf merges a batch that is there twice, and skips fields that it does not know.
            field, wire_type, position = read_tag(agent_message, position)
            end = skip_value(agent_message, wire_type, position)
            if field == BATCH_FIELD and wire_type == BYTES:
                _, position = read_varint(agent_message, position)
                records = _counted(agent_message, position, end, records)
            position = end
    except IndexError:
        return  # It ends too early, which decoding it says in words.
    except ValueError as error:
        raise WireError(str(error)) from error


def _counted(data: bytes, position: int, end: int, records: int) -> int:
    """`records` and those of the batch from `position` to `end`."""
    sequence = 0
    while position < end:
        field, wire_type, position = read_tag(data, position)
        if wire_type == VARINT and field == _SEQUENCE:
            sequence, _ = read_varint(data, position)
        position = skip_value(data, wire_type, position)
        records += wire_type == BYTES and field in {_SAMPLES, _RECORD}
        if records > MAX_RECORDS:
            raise BatchError(f"A batch holds more than {MAX_RECORDS} records.", sequence=sequence)
    return records
