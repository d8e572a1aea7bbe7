"""Converts records to wire messages and back; with `sample_tables` the only code that uses protobuf types.

Values that do not fit the wire, and bytes that are not a message, raise
`WireError`. Additions of a newer peer are not errors: unknown fields are ignored,
records of an unknown kind are counted in `Batch.unknown_records`, and a message of
an unknown kind is `None`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from io import BytesIO
from mmap import mmap
from typing import Any, TypeVar, cast

from google.protobuf.message import DecodeError, Message
from google.protobuf.proto import parse_length_prefixed, serialize_length_prefixed

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
from perfd.wire.sample_tables import decode_table, encode_table
from perfd.wire.structs import Struct, UnknownKindError
from perfd.wire.v1 import telemetry_pb2 as pb

_M = TypeVar("_M", bound=Message)

MAX_RECORDS = 100_000
"""In a batch: as many as an agent has pending at most."""
_UNCOUNTED_BYTES = 64 * 1024
"""Messages up to this size are decoded as they are: 32,768 empty records fit."""
_BATCH, _SEQUENCE, _SAMPLES, _RECORD = 2, 1, 3, 4
"""Fields of an `AgentMessage` and a `Batch` (telemetry.proto)."""

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
_FROM_AGENT = {
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
_AGENT_FIELD = {struct.kind: field for field, struct in _FROM_AGENT.items()}
_AGGREGATOR_FIELD = {struct.kind: field for field, struct in _FROM_AGGREGATOR.items()}
_DecodeTable = Callable[[bytes], SampleTable]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A message that was published instead of streamed."""

    sender: Hello
    """As if the agent had opened a stream with this message."""
    session: str
    """Which of its sessions answers go to."""
    message: AgentMessage | None
    """None for an unknown kind, from a newer agent."""
    namespace: str = ""
    """The Kubernetes namespace that a gateway limits the agent to; empty: any."""
    again: bool = False
    """The batch was published before."""


def to_wire(message: AgentMessage | AggregatorMessage) -> pb.AgentMessage | pb.AggregatorMessage:
    """The envelope that carries `message`; raises `WireError` when a field does not fit."""
    kind = type(message)
    try:
        if isinstance(message, Batch):
            return pb.AgentMessage(batch=_batch_to_wire(message))
        if kind in _AGENT_FIELD:
            field = _AGENT_FIELD[kind]
            return pb.AgentMessage(**cast("Any", {field: _FROM_AGENT[field].to_wire(message)}))
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
            return _batch_from_wire(batch, tables)
        except WireError as error:
            raise BatchError(str(error), sequence=batch.sequence) from error
    struct = (_FROM_AGENT if isinstance(envelope, pb.AgentMessage) else _FROM_AGGREGATOR)[field]
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
    _check_record_count(data)
    return cast("AgentMessage | None", from_wire(_parse(pb.AgentMessage, data), tables))


def jobs_of(agent_message: bytes) -> set[str]:
    """The jobs named by the records in an encoded batch; raises `WireError`."""
    records: Iterable[pb.Record] = _parse(pb.AgentMessage, agent_message).batch.records
    named = (getattr(record, record.WhichOneof("kind") or "event") for record in records)
    return {job for record in named if (job := getattr(record, "job", ""))}


def sequence_of(agent_message: bytes) -> int | None:
    """The sequence of an encoded batch, whose records stay encoded; None for other messages.

    Raises `WireError` if it cannot be read, has too many records, or states a sender: streams do not.
    """
    _check_record_count(agent_message)
    envelope = _parse(pb.AgentMessage, agent_message)
    if envelope.HasField("sender") or envelope.session or envelope.namespace:
        raise WireError("A message in a stream must not name another sender.")
    return envelope.batch.sequence if envelope.WhichOneof("message") == "batch" else None


def encode_sender(sender: Hello, session: str, namespace: str = "", *, again: bool = False) -> bytes:
    """What makes an encoded message a published one, when it follows that; raises `WireError`."""
    try:
        hello = _FROM_AGENT["hello"].to_wire(sender)
        envelope = pb.AgentMessage(
            session=session, namespace=namespace, again=again, **cast("Any", {"sender": hello})
        )
        return envelope.SerializeToString()
    except (TypeError, ValueError) as error:
        raise WireError(f"A Hello cannot be sent: {error}.") from error


def decode_sender(data: bytes) -> Published:
    """Who published a message, which stays encoded; raises `WireError` if that is missing."""
    _check_record_count(data)
    return _sender(_parse(pb.AgentMessage, data))


def decode_published(data: bytes) -> Published:
    """A message with its sender; raises as `decode_agent_message`, and `WireError` without a sender."""
    _check_record_count(data)
    envelope = _parse(pb.AgentMessage, data)
    return replace(_sender(envelope), message=cast("AgentMessage | None", from_wire(envelope)))


def decode_aggregator_message(data: bytes) -> AggregatorMessage | None:
    """An aggregator's message; None for an unknown kind, from a newer aggregator."""
    return cast("AggregatorMessage | None", from_wire(_parse(pb.AggregatorMessage, data)))


def encode_batch(batch: Batch) -> bytes:
    """A length-prefixed batch, as stored in files; raises `WireError`."""
    data = BytesIO()
    try:
        serialize_length_prefixed(_batch_to_wire(batch), data)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"A Batch cannot be encoded: {error}.") from error
    return data.getvalue()


def decode_batch(data: BytesIO | mmap) -> Batch | None:
    """The next batch written by `encode_batch`; None at the end. Raises `WireError`, also if truncated."""
    try:
        message = parse_length_prefixed(pb.Batch, cast("BytesIO", data))
    except (DecodeError, ValueError, OverflowError) as error:
        raise WireError(f"A Batch cannot be decoded: {error}.") from error
    return None if message is None else _batch_from_wire(message, decode_table)


def with_sequence(agent_message: bytes, sequence: int) -> bytes:
    """An encoded batch message with another sequence number."""
    envelope = _parse(pb.AgentMessage, agent_message)
    envelope.batch.sequence = sequence
    return envelope.SerializeToString()


def check(record: Record) -> None:
    """Raise `WireError` with the reason if `record` cannot be sent."""
    try:
        if isinstance(record, SampleTable):
            encode_table(record)
        else:
            _record_to_wire(record)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise WireError(f"A {type(record).__name__} cannot be sent: {error}.") from error


def _check_record_count(agent_message: bytes) -> None:
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


def _batch_to_wire(batch: Batch) -> pb.Batch:
    return pb.Batch(
        sequence=batch.sequence,
        sent_unix_ns=batch.sent_unix_ns,
        dropped_records=batch.dropped_records,
        samples=[encode_table(record) for record in batch.records if isinstance(record, SampleTable)],
        records=[_record_to_wire(record) for record in batch.records if not isinstance(record, SampleTable)],
    )


def _batch_from_wire(message: pb.Batch, tables: _DecodeTable) -> Batch:
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


def _sender(envelope: pb.AgentMessage) -> Published:
    if not envelope.HasField("sender"):
        raise WireError("A published message must say who sends it.")
    sender = cast("Hello", _FROM_AGENT["hello"].from_wire(envelope.sender))
    return Published(
        sender=sender,
        session=envelope.session,
        message=None,
        namespace=envelope.namespace,
        again=envelope.again,
    )


def _parse(kind: type[_M], data: bytes) -> _M:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise WireError(f"{len(data)} bytes are not a perfd.wire.v1.{kind.__name__}: {error}.") from error
