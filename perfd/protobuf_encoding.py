"""The parts of protobuf's wire format that perfd writes itself (https://protobuf.dev/programming-guides/encoding)."""

from __future__ import annotations


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
    return varint(number << 3 | 2) + varint(len(payload)) + payload
