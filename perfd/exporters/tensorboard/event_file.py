"""TensorBoard's event files, written without TensorBoard: they need two messages and a checksum.

A file is a sequence of TFRecords (https://www.tensorflow.org/tutorials/load_data/tfrecord), each an
`Event` of https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache

from perfd.protobuf_encoding import field, varint

_CASTAGNOLI = 0x82F63B78
"""The reversed polynomial of CRC-32C (RFC 3720)."""
_MASK_DELTA = 0xA282EAD8
"""TFRecord masks its checksums with it, so that a checksum of data with checksums stays good."""


def version_event(time_unix_s: float) -> bytes:
    """The first record of a file."""
    return _record(_double(1, time_unix_s) + field(3, b"brain.Event:2"))


def scalars_event(time_unix_s: float, step: int, scalars: Mapping[str, float]) -> bytes:
    """A record with values of one step, by tag."""
    values = (field(1, tag.encode()) + _float(2, value) for tag, value in scalars.items())
    return _event(time_unix_s, step, b"".join(field(1, value) for value in values))


def text_event(time_unix_s: float, step: int, tag: str, markdown: str) -> bytes:
    """A record with a text of one step, which the text plugin shows."""
    metadata = field(1, field(1, b"text"))
    # A tensor of strings (DT_STRING is 7) with one dimension of size 1.
    shape = field(2, _integer(1, 1))
    tensor = _integer(1, 7) + field(2, shape) + field(8, markdown.encode())
    value = field(1, tag.encode()) + field(8, tensor) + field(9, metadata)
    return _event(time_unix_s, step, field(1, value))


def _event(time_unix_s: float, step: int, summary: bytes) -> bytes:
    return _record(_double(1, time_unix_s) + _integer(2, step) + field(5, summary))


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    """CRC-32C (RFC 3720, appendix B.4), rotated and shifted for TFRecords."""
    crc, table = 0xFFFFFFFF, _table()
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


@cache
def _table() -> tuple[int, ...]:
    return tuple(_table_entry(byte) for byte in range(256))


def _table_entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (_CASTAGNOLI if value & 1 else 0)
    return value


def _integer(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value & 0xFFFFFFFFFFFFFFFF)


def _double(number: int, value: float) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<d", value)


def _float(number: int, value: float) -> bytes:
    # Beyond the range of a float it is infinity, as a cast in C.
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return varint(number << 3 | 5) + packed
