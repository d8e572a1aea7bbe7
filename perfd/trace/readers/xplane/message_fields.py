"""Walks the fields of a protobuf message without decoding it, so that memory does not grow with the file."""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


def submessages(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and bytes of each field that is a message, a text or bytes; the others are skipped.

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
            _, at = _varint(message, at)
        elif kind in _FIXED_BYTES:
            at += _FIXED_BYTES[kind]
        else:
            raise ValueError(f"wire type {kind}")
    if at > size:
        raise ValueError("the message is cut")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number at a position, and the position behind it."""
    value = 0
    for count, byte in enumerate(message[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, at + count + 1
    raise ValueError("a number is cut")
