"""Messages in a file, each after its length as a protobuf varint ("delimited" in protobuf libraries)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from perfd.errors import RecordingError

MAX_MESSAGE_BYTES = 64 * 1024 * 1024


def delimit(message: bytes) -> bytes:
    """The message with its length in front."""
    length = len(message)
    prefix = bytearray()
    while length >= 0x80:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + message


def read_delimited(file: BinaryIO) -> Iterator[bytes]:
    """Each message of the file in turn; one that is cut off at the end is left out.

    Raises `RecordingError` for a length that no writer of ours could have written.
    """
    while (length := _read_length(file)) is not None:
        message = file.read(length)
        if len(message) < length:
            return
        yield message


def _read_length(file: BinaryIO) -> int | None:
    length = shift = 0
    while byte := file.read(1):
        length |= (byte[0] & 0x7F) << shift
        if length > MAX_MESSAGE_BYTES or shift > 28:
            raise RecordingError("a message is longer than any that perfd writes: the file is damaged")
        if byte[0] < 0x80:
            return length
        shift += 7
    return None
