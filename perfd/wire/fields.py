"""Finds the fields of an encoded message without decoding it. A truncated message raises IndexError."""

from __future__ import annotations

from perfd.errors import WireError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""


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


def tag(data: bytes, position: int) -> tuple[int, int, int]:
    """A field's number, its type, and the position of its value."""
    number, position = varint(data, position)
    return number >> 3, number & 7, position


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
