"""Converts a dataclass to a protobuf message with the same fields, and back.

`telemetry.proto` uses the field names of `perfd.model`, so the mapping is derived
from both at import: a field that one of the two lacks is an error there, not a
value lost later.
"""

# ruff: noqa: ANN401  (the types are only known at run time)
from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from operator import attrgetter
from types import UnionType
from typing import Any

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

_Convert = Callable[[Any], Any]


class UnknownKindError(Exception):
    """A newer peer used an unknown kind; the record is skipped."""


class Struct:
    """Converts one record type to its message type and back."""

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


def enum_by_name(kind: type[StrEnum], descriptor: EnumDescriptor) -> dict[StrEnum, int]:
    """Numbers on the wire by member: `CaptureTool.PY_SPY` is `CAPTURE_TOOL_PY_SPY` there."""
    prefix = descriptor.values[0].name.removesuffix("UNSPECIFIED")
    return {member: descriptor.values_by_name[prefix + member.name].number for member in kind}


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
    struct = Struct(typing.cast("type[Any]", value_kind), type(entry().value))
    return (
        lambda values: {key: struct.to_wire(value) for key, value in values.items()},
        lambda source: {key: struct.from_wire(value) for key, value in getattr(source, name).items()},
    )


def _repeated_field(name: str, kind: Any, message: type[Message]) -> tuple[_Convert, _Convert]:
    if dataclasses.is_dataclass(kind):
        struct = Struct(typing.cast("type[Any]", kind), type(getattr(message(), name).add()))
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
