"""Converts records to wire messages and back, field by field.

Values that do not fit the wire, and bytes that are not a message, raise
`WireError`. Additions of a newer peer are not errors: unknown fields are ignored,
records of an unknown kind are counted in `Batch.unknown_records`, and a message of
an unknown kind is `None`.
"""

# ruff: noqa: ANN401  (the types of fields are only known at run time)

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from operator import attrgetter
from types import UnionType
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from perfd import model
from perfd.errors import BatchError, WireError
from perfd.model import (
    Ack,
    AcknowledgeEach,
    AgentMessage,
    AggregatorMessage,
    Batch,
    CaptureCancel,
    CaptureRequest,
    CaptureStatus,
    Goodbye,
    Hello,
    NewFinding,
    Record,
    SampleTable,
    Stored,
    Welcome,
)
from perfd.protobuf_encoding import BYTES, VARINT, read_tag, read_varint, skip_value
from perfd.wire.sample_tables import UnknownKindError, decode_table, encode_table, enum_by_name
from perfd.wire.v1 import telemetry_pb2 as pb

_M = TypeVar("_M", bound=Message)

MAX_RECORDS = 100_000
"""In a batch: as many as an agent has pending at most."""
_UNCOUNTED_BYTES = 64 * 1024
"""Messages up to this size are decoded as they are: 32,768 empty records fit."""
_BATCH, _SEQUENCE, _SAMPLES, _RECORD = 2, 1, 3, 4
"""Fields of an `AgentMessage` and a `Batch` (telemetry.proto)."""

_Convert = Callable[[Any], Any]


class Struct:
    """Converts one record type to its message type and back.

    `telemetry.proto` uses the field names of `perfd.model`, so the mapping is derived from both at import: a
    field that one of the two lacks is an error there, not a value lost later.
    """

    def __init__(self, kind: type[Any], message: type[Message]) -> None:
        self.kind = kind
        self._message = message
        self._encoders: list[tuple[str, _Convert]] = []
        self._decoders: list[tuple[str, _Convert]] = []
        plain: list[str] = []
        descriptors: dict[str, Any] = dict(message.DESCRIPTOR.fields_by_name)
        for name, hint in typing.get_type_hints(kind).items():
            field = descriptors.pop(name, None)
            if field is None:
                raise TypeError(f"{message.DESCRIPTOR.full_name} has no field for {kind.__name__}.{name}")
            encode, decode = _field(field, hint, message)
            self._encoders.append((name, encode))
            if decode is None:
                plain.append(name)
            else:
                self._decoders.append((name, decode))
        if descriptors:
            raise TypeError(f"{kind.__name__} has no field for {', '.join(descriptors)} of its message")
        self._plain = plain
        # For a single name, attrgetter would not return a tuple.
        self._plain_values = attrgetter(*plain, *plain[:1]) if plain else lambda _: ()

    def to_wire(self, record: Any) -> Message:
        """The message of `record`; raises TypeError or ValueError when a value does not fit its field."""
        # Protobuf constructors treat None as "not set", which is also its meaning in a record.
        return self._message(**{name: encode(getattr(record, name)) for name, encode in self._encoders})

    def from_wire(self, message: Any) -> Any:
        """The record of `message`; raises `UnknownKindError` when an enumeration has a newer value."""
        fields = dict(zip(self._plain, self._plain_values(message), strict=False))
        for name, decode in self._decoders:
            fields[name] = decode(message)
        return self.kind(**fields)


def _field(field: FieldDescriptor, hint: Any, message: type[Message]) -> tuple[_Convert, _Convert | None]:
    """How a field is encoded and decoded; None: unchanged."""
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _map_field(name, hint, message)
    if field.is_repeated:
        return _repeated_field(name, typing.get_args(hint)[0], message)
    inner, optional = _without_none(hint)
    if dataclasses.is_dataclass(inner):
        return _struct_field(name, inner, message, optional=optional)
    if issubclass(inner, StrEnum):
        return _enum_field(field, inner, optional=optional)
    if optional:
        return _same, lambda source: getattr(source, name) if source.HasField(name) else None
    return _same, None


def _struct_field(
    name: str, kind: Any, message: type[Message], *, optional: bool
) -> tuple[_Convert, _Convert]:
    struct = Struct(kind, type(getattr(message(), name)))
    if not optional:
        return struct.to_wire, lambda source: struct.from_wire(getattr(source, name))
    return (
        lambda value: None if value is None else struct.to_wire(value),
        lambda source: struct.from_wire(getattr(source, name)) if source.HasField(name) else None,
    )


def _map_field(name: str, hint: Any, message: type[Message]) -> tuple[_Convert, _Convert]:
    value_kind = typing.get_args(hint)[1]
    if not dataclasses.is_dataclass(value_kind):
        return dict, lambda source: dict(getattr(source, name))
    entry = getattr(message(), name).GetEntryClass()
    struct = Struct(cast("type[Any]", value_kind), type(entry().value))
    return (
        lambda values: {key: struct.to_wire(value) for key, value in values.items()},
        lambda source: {key: struct.from_wire(value) for key, value in getattr(source, name).items()},
    )


def _repeated_field(name: str, kind: Any, message: type[Message]) -> tuple[_Convert, _Convert]:
    if dataclasses.is_dataclass(kind):
        struct = Struct(cast("type[Any]", kind), type(getattr(message(), name).add()))
        return (
            lambda values: [struct.to_wire(value) for value in values],
            lambda source: tuple([struct.from_wire(value) for value in getattr(source, name)]),
        )
    if issubclass(kind, StrEnum):
        known = {member.value: member for member in kind}
        # A peer may list unknown tools, which are ignored.
        return (
            lambda values: [kind(value).value for value in values],
            lambda source: tuple([known[value] for value in getattr(source, name) if value in known]),
        )
    return list, lambda source: tuple(getattr(source, name))


def _enum_field(field: FieldDescriptor, kind: type[StrEnum], *, optional: bool) -> tuple[_Convert, _Convert]:
    name = field.name
    to_number: Mapping[StrEnum, Any] = (
        enum_by_name(kind, field.enum_type)
        if field.enum_type is not None
        else {member: member.value for member in kind}
    )
    from_number = {number: member for member, number in to_number.items()}

    def encode(value: Any) -> Any:
        return None if optional and value is None else to_number[kind(value)]

    def decode(source: Any) -> StrEnum | None:
        member = from_number.get(getattr(source, name))
        if member is None and not optional:
            raise UnknownKindError
        return member

    return encode, decode


def _without_none(hint: Any) -> tuple[Any, bool]:
    if isinstance(hint, UnionType):
        inner = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return inner[0], True
    return hint, False


def _same(value: Any) -> Any:
    return value


_RECORDS = {
    "gpu_info": Struct(model.GpuInfo, pb.GpuInfo),
    "gpu_allocations": Struct(model.GpuAllocations, pb.GpuAllocations),
    "rank_placement": Struct(model.RankPlacement, pb.RankPlacement),
    "job_description": Struct(model.JobDescription, pb.JobDescription),
    "job_origin": Struct(model.JobOrigin, pb.JobOrigin),
    "training_step": Struct(model.TrainingStep, pb.TrainingStep),
    "step_phases": Struct(model.StepPhases, pb.StepPhases),
    "memory_report": Struct(model.MemoryReport, pb.MemoryReport),
    "event": Struct(model.Event, pb.Event),
    "log_progress": Struct(model.LogProgress, pb.LogProgress),
    "collector_health": Struct(model.CollectorHealth, pb.CollectorHealth),
    "collective_times": Struct(model.CollectiveTimes, pb.CollectiveTimes),
    "collective_progress": Struct(model.CollectiveProgress, pb.CollectiveProgress),
    "server_info": Struct(model.ServerInfo, pb.ServerInfo),
    "capture_files_removed": Struct(model.CaptureFilesRemoved, pb.CaptureFilesRemoved),
    "capture_file_upload": Struct(model.CaptureFileUpload, pb.CaptureFileUpload),
}
FROM_AGENT = {
    "hello": Struct(Hello, pb.Hello),
    "capture_status": Struct(CaptureStatus, pb.CaptureStatus),
    "goodbye": Struct(Goodbye, pb.Goodbye),
    "acknowledge_each": Struct(AcknowledgeEach, pb.AcknowledgeEach),
}
_FROM_AGGREGATOR = {
    "welcome": Struct(Welcome, pb.Welcome),
    "ack": Struct(Ack, pb.Ack),
    "capture_request": Struct(CaptureRequest, pb.CaptureRequest),
    "capture_cancel": Struct(CaptureCancel, pb.CaptureCancel),
    "new_finding": Struct(NewFinding, pb.NewFinding),
    "stored": Struct(Stored, pb.Stored),
}
_RECORD_FIELD = {struct.kind: field for field, struct in _RECORDS.items()}
_AGENT_FIELD = {struct.kind: field for field, struct in FROM_AGENT.items()}
_AGGREGATOR_FIELD = {struct.kind: field for field, struct in _FROM_AGGREGATOR.items()}
_DecodeTable = Callable[[bytes], SampleTable]


def to_wire(message: AgentMessage | AggregatorMessage) -> pb.AgentMessage | pb.AggregatorMessage:
    """The envelope that carries `message`; raises `WireError` when a field does not fit."""
    kind = type(message)
    try:
        if isinstance(message, Batch):
            return pb.AgentMessage(batch=batch_to_wire(message))
        if kind in _AGENT_FIELD:
            field = _AGENT_FIELD[kind]
            return pb.AgentMessage(**cast("Any", {field: FROM_AGENT[field].to_wire(message)}))
        field = _AGGREGATOR_FIELD[kind]
        return pb.AggregatorMessage(**cast("Any", {field: _FROM_AGGREGATOR[field].to_wire(message)}))
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise WireError(f"A {kind.__name__} cannot be sent: {error}.") from error


def from_wire(
    envelope: pb.AgentMessage | pb.AggregatorMessage, tables: _DecodeTable = decode_table
) -> AgentMessage | AggregatorMessage | None:
    """The message in an envelope, its tables decoded by `tables`; None for a kind from a newer peer."""
    field = envelope.WhichOneof("message")
    if field is None:
        return None
    if field == "batch":
        batch = getattr(envelope, field)
        try:
            return batch_from_wire(batch, tables)
        except WireError as error:
            raise BatchError(str(error), sequence=batch.sequence) from error
    struct = (FROM_AGENT if isinstance(envelope, pb.AgentMessage) else _FROM_AGGREGATOR)[field]
    try:
        return cast("AgentMessage | AggregatorMessage", struct.from_wire(getattr(envelope, field)))
    except UnknownKindError:
        return None


def encode_message(message: AgentMessage | AggregatorMessage) -> bytes:
    """The bytes of `message` in its envelope, as sent in the stream."""
    return to_wire(message).SerializeToString()


def decode_agent_message(data: bytes, tables: _DecodeTable = decode_table) -> AgentMessage | None:
    """An agent's message, its tables decoded by `tables`; None for an unknown kind, from a newer agent.

    Raises `BatchError`, with the sequence, when only the records of a batch are invalid or too many.
    """
    check_record_count(data)
    return cast("AgentMessage | None", from_wire(parse(pb.AgentMessage, data), tables))


def decode_aggregator_message(data: bytes) -> AggregatorMessage | None:
    """An aggregator's message; None for an unknown kind, from a newer aggregator."""
    return cast("AggregatorMessage | None", from_wire(parse(pb.AggregatorMessage, data)))


def check(record: Record) -> None:
    """Raise `WireError` with the reason if `record` cannot be sent."""
    try:
        if isinstance(record, SampleTable):
            encode_table(record)
        else:
            _record_to_wire(record)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise WireError(f"A {type(record).__name__} cannot be sent: {error}.") from error


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
            if field == _BATCH and wire_type == BYTES:
                _, position = read_varint(agent_message, position)
                records = _counted(agent_message, position, end, records)
            position = end
    except IndexError:
        # It ends too early, which decoding it says in words.
        return
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


def batch_to_wire(batch: Batch) -> pb.Batch:
    """The message of a batch; raises what encoding a record does."""
    return pb.Batch(
        sequence=batch.sequence,
        sent_unix_ns=batch.sent_unix_ns,
        dropped_records=batch.dropped_records,
        samples=[encode_table(record) for record in batch.records if isinstance(record, SampleTable)],
        records=[_record_to_wire(record) for record in batch.records if not isinstance(record, SampleTable)],
    )


def batch_from_wire(message: pb.Batch, tables: _DecodeTable) -> Batch:
    """The batch in a message, its tables decoded by `tables`; raises `WireError`."""
    records: list[Record] = []
    unknown = 0
    for decode, wire_records in ((tables, message.samples), (_record_from_wire, message.records)):
        for wire_record in cast("Iterable[Any]", wire_records):
            try:
                records.append(decode(wire_record))
            except UnknownKindError:
                unknown += 1
    return Batch(
        sequence=message.sequence,
        sent_unix_ns=message.sent_unix_ns,
        records=records,
        dropped_records=message.dropped_records,
        unknown_records=unknown,
    )


def _record_to_wire(record: Record) -> pb.Record:
    field = _RECORD_FIELD.get(type(record))
    if field is None:
        raise WireError(f"{type(record).__name__} is not a known type of record; see perfd/model/.")
    return pb.Record(**cast("Any", {field: _RECORDS[field].to_wire(record)}))


def _record_from_wire(message: pb.Record) -> Record:
    field = message.WhichOneof("kind")
    if field is None:
        raise UnknownKindError
    return cast("Record", _RECORDS[field].from_wire(getattr(message, field)))


def parse(kind: type[_M], data: bytes) -> _M:
    """The message of a kind that `data` encodes; raises `WireError`."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise WireError(f"{len(data)} bytes are not a perfd.wire.v1.{kind.__name__}: {error}.") from error
