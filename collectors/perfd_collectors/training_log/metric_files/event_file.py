"""TensorBoard's event files: TFRecords of protobuf events, each with some scalars of a step."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

from google.protobuf.message import DecodeError

from perfd_collectors.training_log.metric_files import metric_files_pb2 as pb
from perfd_collectors.training_log.metric_files.metric_rows import MAX_KEYS, MetricRow

_MOST_BYTES = 1 << 20
"""Of a record that is read; larger ones are images or graphs, and skipped without being kept."""
_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4
"""Footer of a TFRecord: the checksum of its data."""
_MASK_DELTA = 0xA282EAD8
"""TFRecord's: checksums are rotated and have this added (tensorflow/core/lib/hash/crc32c.h)."""
_FORMATS = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}
"""Of a scalar in a tensor, by TensorFlow's number of its type."""
_MOST_STEP = 1 << 53
"""Up to which doubles hold whole numbers exactly."""


class EventFileReader:
    """Scalars of one event file, as rows of a step.

    A writer logs each scalar on its own, so a row is complete when one of another step follows, or when it
    has the names that the row before had.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._held = bytearray()
        self._skip_bytes = 0
        self._damaged = False
        self._open: tuple[int, int, dict[str, float]] | None = None
        """Step, time and values of the row that is not complete."""
        self._names: frozenset[str] = frozenset()
        """Of the newest complete row."""
        self._closed_step: int | None = None

    def feed(self, data: bytes) -> Iterator[MetricRow]:
        skipped = min(self._skip_bytes, len(data))
        self._skip_bytes -= skipped
        if self._damaged:
            return
        self._held += memoryview(data)[skipped:]
        for record in self._records():
            yield from self._event(record)

    def flush(self) -> Iterator[MetricRow]:
        """The row of the newest step."""
        row = self._close()
        if row is not None:
            yield row

    def _records(self) -> Iterator[bytes]:
        while len(self._held) >= _HEADER.size:
            length, checksum = _HEADER.unpack_from(self._held)
            if masked_crc32c(bytes(self._held[:8])) != checksum:
                # Where the next record begins is unknown.
                self._damaged = True
                self._held.clear()
                return
            whole = _HEADER.size + length + _FOOTER_BYTES
            if length > _MOST_BYTES:
                self._skip_bytes = max(0, whole - len(self._held))
                del self._held[:whole]
                continue
            if len(self._held) < whole:
                return
            record = bytes(self._held[_HEADER.size : _HEADER.size + length])
            del self._held[:whole]
            yield record

    def _event(self, record: bytes) -> Iterator[MetricRow]:
        try:
            event = pb.Event.FromString(record)
        except DecodeError:
            return
        if not event.summary.value or not 0 <= event.step < _MOST_STEP or not 0 < event.wall_time < 1e10:
            return
        values = {
            value.tag: number for value in event.summary.value if (number := _scalar(value)) is not None
        }
        if not values:
            return
        if self._open is not None and self._open[0] != event.step:
            yield from self.flush()
        if event.step == self._closed_step:
            return
        if self._open is None:
            self._open = (event.step, round(event.wall_time * 1e9), {})
        held = self._open[2]
        for tag, number in values.items():
            if len(held) < MAX_KEYS:
                held.setdefault(tag, number)
        if self._names and self._names <= held.keys():
            yield from self.flush()

    def _close(self) -> MetricRow | None:
        if self._open is None:
            return None
        step, unix_ns, values = self._open
        self._open, self._closed_step, self._names = None, step, frozenset(values)
        return MetricRow(step=step, values=values, unix_ns=unix_ns)


def _scalar(value: pb.SummaryValue) -> float | None:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return _finite(value.simple_value)
    if kind != "tensor":
        return None
    tensor = value.tensor
    form = _FORMATS.get(tensor.dtype)
    if form is None:
        return None
    if tensor.tensor_content:
        fits = len(tensor.tensor_content) == struct.calcsize(form)
        return _finite(struct.unpack(form, tensor.tensor_content)[0]) if fits else None
    for values in (tensor.float_val, tensor.double_val, tensor.int_val, tensor.int64_val):
        if values:
            return _finite(values[0]) if len(values) == 1 else None
    return None


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC_TABLE = _crc_table()


def masked_crc32c(data: bytes) -> int:
    """The checksum of TFRecords (tensorflow/core/lib/hash/crc32c.h): Castagnoli's CRC-32, rotated."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF
