"""The parts of protobuf's wire format that perfd reads and writes itself.

See https://protobuf.dev/programming-guides/encoding. Readers raise IndexError where the bytes end too early.
"""

from __future__ import annotations

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""


def varint(value: int) -> bytes:
    """A non-negative number, seven bits per byte, the lowest first."""
    if value < 0x80:
        return value.to_bytes(1, "little")
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def field(number: int, payload: bytes) -> bytes:
    """A field of bytes: a text, or a nested message."""
    return varint(number << 3 | BYTES) + varint(len(payload)) + payload


def read_tag(data: bytes, position: int) -> tuple[int, int, int]:
    """A field's number, its wire type, and the position of its value."""
    number, position = read_varint(data, position)
    return number >> 3, number & 7, position


def skip_value(data: bytes, wire_type: int, position: int) -> int:
    """The position after a field's value; raises ValueError for a type that perfd does not send."""
    if wire_type == VARINT:
        return read_varint(data, position)[1]
    if wire_type == BYTES:
        size, position = read_varint(data, position)
        return position + size
    if wire_type in {FIXED64, FIXED32}:
        return position + (8 if wire_type == FIXED64 else 4)
    raise ValueError(f"A message holds a field of wire type {wire_type}, which perfd does not send.")


def read_varint(data: bytes, position: int) -> tuple[int, int]:
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
