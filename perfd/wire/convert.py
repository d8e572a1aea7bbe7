"""Converts records to wire messages and back, field by field.

Values that do not fit the wire, and bytes that are not a message, raise `WireError`. Additions of newer peers
pass: unknown fields are ignored, records of an unknown kind are counted in `Batch.unknown_records`, and a
message of an unknown kind is `None`. What a record may hold is bounded here, before anything keeps it.
"""

# ruff: noqa: ANN401  (the types of fields are only known at run time)

from __future__ import annotations

import dataclasses
import typing
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import islice
from operator import attrgetter
from types import UnionType
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from perfd import model
from perfd.errors import BatchError, WireError
from perfd.model import AgentMessage, AggregatorMessage, Batch, Record, SampleTable
from perfd.protobuf_encoding import BYTES, varint
from perfd.wire.sample_tables import TooLongError, UnknownKindError, decode_table, encode_table, enum_by_name
from perfd.wire.v1 import telemetry_pb2 as pb

_M = TypeVar("_M", bound=Message)

BATCH_FIELD = 2
"""Of an `AgentMessage` (telemetry.proto)."""
_MAX_TEXT_CHARS = 4_096
"""Of a text in a record, such as an event's message: what is longer is cut. Chosen."""
_MAX_ENTRIES, _MAX_ENTRIES_CHARS = 2_048, 262_144
"""Of a mapping in a record, such as a job's arguments or a line's losses, and of all its texts. Chosen."""
_MAX_VALUES = 65_536
"""Of a list or a mapping by rank in a record: one for each rank of the largest job."""

_Encode = Callable[[Any], Any]
_Cut = dict[str, int] | None
"""Counts what is left out, by the name of the bound, from 0 on; None: there are no bounds."""
_Decode = Callable[[Any, _Cut], Any]


class Struct:
    """Converts one record type to its message type and back.

    `telemetry.proto` uses the field names of `perfd.model`, so the mapping is derived from both at import: a
    field that one of the two lacks is an error there, not a value lost later.
    """

    def __init__(self, kind: type[Any], message: type[Message]) -> None:
        self.kind = kind
        self._message = message
        self._encoders: list[tuple[str, _Encode]] = []
        self._decoders: list[tuple[str, _Decode]] = []
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

    def from_wire(self, message: Any, cut: _Cut = None) -> Any:
        """The record of `message`, within the bounds if what is `cut` is counted.

        Raises `UnknownKindError` for a newer value of an enumeration, `TooLongError` for a long list.
        """
        fields = dict(zip(self._plain, self._plain_values(message), strict=False))
        for name, decode in self._decoders:
            fields[name] = decode(message, cut)
        return self.kind(**fields)


def _field(field: FieldDescriptor, hint: Any, message: type[Message]) -> tuple[_Encode, _Decode | None]:
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
    decode = _bounded_text(name) if inner is str else None
    if optional:
        known = decode or (lambda source, _: getattr(source, name))
        return _same, lambda source, cut: known(source, cut) if source.HasField(name) else None
    return _same, decode


def _struct_field(name: str, kind: Any, message: type[Message], *, optional: bool) -> tuple[_Encode, _Decode]:
    struct = Struct(kind, type(getattr(message(), name)))

    def decode(source: Any, cut: _Cut) -> Any:
        there = not optional or source.HasField(name)
        return struct.from_wire(getattr(source, name), cut) if there else None

    return lambda value: None if value is None else struct.to_wire(value), decode


def _map_field(name: str, hint: Any, message: type[Message]) -> tuple[_Encode, _Decode]:
    key_kind, value_kind = typing.get_args(hint)
    if not dataclasses.is_dataclass(value_kind):
        if key_kind is str:
            return dict, lambda source, cut: bounded_entries(dict(getattr(source, name)), cut)
        return dict, lambda source, cut: dict(_bounded(getattr(source, name), cut))
    entry = getattr(message(), name).GetEntryClass()
    struct = Struct(cast("type[Any]", value_kind), type(entry().value))

    def decode(source: Any, cut: _Cut) -> dict[Any, Any]:
        found = {key: struct.from_wire(value, cut) for key, value in getattr(source, name).items()}
        return bounded_entries(found, cut)

    return lambda values: {key: struct.to_wire(value) for key, value in values.items()}, decode


def _repeated_field(name: str, kind: Any, message: type[Message]) -> tuple[_Encode, _Decode]:
    if dataclasses.is_dataclass(kind):
        struct = Struct(cast("type[Any]", kind), type(getattr(message(), name).add()))
        return (
            lambda values: [struct.to_wire(value) for value in values],
            lambda source, cut: tuple(
                [struct.from_wire(value, cut) for value in _bounded(getattr(source, name), cut)]
            ),
        )
    if issubclass(kind, StrEnum):
        known = {member.value: member for member in kind}
        # A peer may list unknown tools, which are ignored.
        return (
            lambda values: [kind(value).value for value in values],
            lambda source, _: tuple([known[value] for value in getattr(source, name) if value in known]),
        )
    return list, lambda source, cut: tuple(_bounded(getattr(source, name), cut))


def _bounded_text(name: str) -> _Decode:
    def decode(source: Any, cut: _Cut) -> str:
        text: str = getattr(source, name)
        if cut is None or len(text) <= _MAX_TEXT_CHARS:
            return text
        cut["text_chars"] += 1
        return text[:_MAX_TEXT_CHARS]

    return decode


def _bounded(values: Any, cut: _Cut) -> Any:
    if cut is not None and len(values) > _MAX_VALUES:
        raise TooLongError("values_per_record")
    return values


def bounded_entries(entries: dict[str, Any], cut: _Cut) -> dict[str, Any]:
    """The first entries, as many as a mapping of one record may hold, counted as `entries_per_record`."""
    if cut is None:
        return entries
    chars = 0
    for kept, (name, value) in enumerate(entries.items()):
        chars += len(name) + (len(value) if isinstance(value, str) else 0)
        if kept >= _MAX_ENTRIES or chars > _MAX_ENTRIES_CHARS:
            cut["entries_per_record"] += 1
            return dict(islice(entries.items(), kept))
    return entries


def _enum_field(field: FieldDescriptor, kind: type[StrEnum], *, optional: bool) -> tuple[_Encode, _Decode]:
    name = field.name
    to_number: Mapping[StrEnum, Any] = (
        enum_by_name(kind, field.enum_type)
        if field.enum_type is not None
        else {member: member.value for member in kind}
    )
    from_number = {number: member for member, number in to_number.items()}

    def encode(value: Any) -> Any:
        return None if optional and value is None else to_number[kind(value)]

    def decode(source: Any, _cut: _Cut) -> StrEnum | None:
        member = from_number.get(getattr(source, name))
        if member is None and not optional:
            raise UnknownKindError
        return member

    return encode, decode


def _without_none(hint: Any) -> tuple[Any, bool]:
    if not isinstance(hint, UnionType):
        return hint, False
    return next(kind for kind in typing.get_args(hint) if kind is not type(None)), True


def _same(value: Any) -> Any:
    return value


def _structs(message: type[Message], oneof: str) -> dict[str, Struct]:
    """By field, the records that a message holds one of; both kinds have the same names."""
    fields: Iterable[Any] = message.DESCRIPTOR.oneofs_by_name[oneof].fields
    kinds = {field.name: field.message_type.name for field in fields if field.name != "batch"}
    return {field: Struct(getattr(model, name), getattr(pb, name)) for field, name in kinds.items()}


_RECORDS = _structs(pb.Record, "kind")
_ENVELOPES = {kind: _structs(kind, "message") for kind in (pb.AgentMessage, pb.AggregatorMessage)}
HELLO = _ENVELOPES[pb.AgentMessage]["hello"]
_RECORD_FIELD = {struct.kind: field for field, struct in _RECORDS.items()}
_PLACE = {one.kind: (kind, field) for kind, structs in _ENVELOPES.items() for field, one in structs.items()}
DecodeTable = Callable[[bytes], SampleTable]
_Message = AgentMessage | AggregatorMessage
_Envelope = pb.AgentMessage | pb.AggregatorMessage


def to_wire(message: _Message) -> _Envelope:
    """The envelope that carries `message`, no batch; raises `WireError` when a field does not fit."""
    try:
        envelope, name = _PLACE[type(message)]
        return envelope(**cast("Any", {name: _ENVELOPES[envelope][name].to_wire(message)}))
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise WireError(f"A {type(message).__name__} cannot be sent: {error}.") from error


def from_wire(
    envelope: _Envelope, tables: DecodeTable = decode_table, encoded: Sequence[bytes] | None = None
) -> _Message | None:
    """The message in an envelope; None for a kind from a newer peer. The rest is as in `batch_from_wire`."""
    field = envelope.WhichOneof("message")
    if field is None:
        return None
    if field == "batch":
        batch = getattr(envelope, field)
        try:
            return batch_from_wire(batch, tables, encoded)
        except WireError as error:
            raise BatchError(str(error), sequence=batch.sequence) from error
    struct = _ENVELOPES[type(envelope)][field]
    try:
        return cast("_Message", struct.from_wire(getattr(envelope, field)))
    except UnknownKindError:
        return None


def encode_message(message: _Message, encoded: Iterable[bytes] = ()) -> bytes:
    """The bytes of `message` in its envelope; raises `WireError`. `encoded` is as in `batch_bytes`."""
    if isinstance(message, Batch):
        data = batch_bytes(message, encoded)
        return varint(BATCH_FIELD << 3 | BYTES) + varint(len(data)) + data
    return to_wire(message).SerializeToString()


def decode_aggregator_message(data: bytes) -> AggregatorMessage | None:
    """An aggregator's message; None for an unknown kind, from a newer aggregator."""
    return cast("AggregatorMessage | None", from_wire(parse(pb.AggregatorMessage, data)))


def encode_record(record: Record) -> bytes:
    """A record as it is in a batch; raises `WireError` with the reason if it cannot be sent."""
    try:
        if isinstance(record, SampleTable):
            return pb.Batch(samples=[encode_table(record)]).SerializeToString()
        if (name := _RECORD_FIELD.get(type(record))) is None:
            raise WireError(f"{type(record).__name__} is not a known type of record; see perfd/model/.")
        batch = pb.Batch()
        batch.records.add(**cast("Any", {name: _RECORDS[name].to_wire(record)}))
        return batch.SerializeToString()
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise WireError(f"A {type(record).__name__} cannot be sent: {error}.") from error


def encode_records(records: Iterable[Record]) -> tuple[list[tuple[Record, bytes]], WireError | None]:
    """The records that can be sent, each with its bytes, and why the first of the others cannot."""
    encoded: list[tuple[Record, bytes]] = []
    refused: WireError | None = None
    for record in records:
        try:
            encoded.append((record, encode_record(record)))
        except WireError as error:
            refused = refused or error
    return encoded, refused


def batch_bytes(batch: Batch, encoded: Iterable[bytes] = ()) -> bytes:
    """A batch without envelope; `encoded` records by `encode_record` follow its own. Raises `WireError`."""
    sent, dropped = batch.sent_unix_ns, batch.dropped_records
    try:
        head = pb.Batch(sequence=batch.sequence, sent_unix_ns=sent, dropped_records=dropped)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"A Batch cannot be sent: {error}.") from error
    return b"".join((head.SerializeToString(), *map(encode_record, batch.records), *encoded))


def batch_from_wire(message: pb.Batch, tables: DecodeTable, encoded: Sequence[bytes] | None = None) -> Batch:
    """The batch in a message, its tables decoded by `tables`; raises `WireError`.

    `encoded` are its tables, where they were read before: each time protobuf copies them.
    """
    records: list[Record] = []
    unknown = 0
    cut: defaultdict[str, int] = defaultdict(int)
    bounded = partial(_record_from_wire, cut=cut)
    samples = message.samples if encoded is None else encoded
    for decode, wire_records in ((tables, samples), (bounded, message.records)):
        for wire_record in cast("Iterable[Any]", wire_records):
            try:
                records.append(decode(wire_record))
            except UnknownKindError:
                unknown += 1
            except TooLongError as error:
                cut[error.bound] += 1
    return Batch(
        sequence=message.sequence,
        sent_unix_ns=message.sent_unix_ns,
        records=records,
        dropped_records=message.dropped_records,
        unknown_records=unknown,
        cut=cut,
    )


def _record_from_wire(message: pb.Record, cut: _Cut) -> Record:
    field = message.WhichOneof("kind")
    if field is None:
        raise UnknownKindError
    return cast("Record", _RECORDS[field].from_wire(getattr(message, field), cut))


def parse(kind: type[_M], data: bytes) -> _M:
    """The message of a kind that `data` encodes; raises `WireError`."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise WireError(f"{len(data)} bytes are not a perfd.wire.v1.{kind.__name__}: {error}.") from error
