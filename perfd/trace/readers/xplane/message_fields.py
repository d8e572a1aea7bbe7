"""Walks the fields of a protobuf message without decoding it, so that memory does not grow with the file."""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types (protobuf's encoding)."""
_MAX_VARINT_BYTES = 10
"""Longest varint: 64 bits, seven per byte (protobuf's encoding)."""
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


def submessages(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and bytes of each field that is a message, a text or bytes; the others are skipped.

    Raises `ValueError` when the message is cut or is none.
    """
    return ((number, value) for number, value in fields(message) if not isinstance(value, int))


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field: a number, or bytes as above; those of a fixed length are skipped.

    Raises `ValueError` when the message is cut or is none.
    """
    at, size = 0, len(message)
    while at < size:
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _BYTES:
            length, at = _varint(message, at)
            if length > size - at:
                raise ValueError("a field is longer than its message")
            yield key >> 3, message[at : at + length]
            at += length
        elif kind == _VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
        elif kind in _FIXED_BYTES:
            at += _FIXED_BYTES[kind]
        else:
            raise ValueError(f"wire type {kind}")
    if at > size:
        raise ValueError("the message is cut")


def numbers(value: int | memoryview) -> Iterator[int]:
    """The numbers of a repeated field: one, or many in one piece of bytes."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield number


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number at a position, and the position behind it."""
    value = 0
    for count, byte in enumerate(message[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, at + count + 1
    raise ValueError("a number is cut")
