"""W&B's run file (`run-ID.wandb`): a log in LevelDB's format of protobuf records, some of them history."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator

import msgspec
from google.protobuf.message import DecodeError

from perfd_collectors.training_log.metric_files import metric_files_pb2 as pb
from perfd_collectors.training_log.metric_files.metric_rows import MAX_KEYS, MetricRow

_BLOCK_BYTES = 32768
"""Block size of LevelDB's log format."""
_FILE_HEADER = struct.Struct("<4sHB")
"""`:W&B`, a magic number, and the version of the format."""
_IDENT = b":W&B"
_PIECE_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
"""Types of pieces of a record (LevelDB's log format, which W&B uses)."""
_MOST_BYTES = 1 << 20
"""Of a record in pieces; larger ones are media or configuration, and dropped."""
_STEP_KEYS = ("train/global_step", "trainer/global_step", "global_step", "train/step", "step", "iteration")
"""A job's own step; W&B's `_step` counts calls of `log`, which some jobs make twice a step."""
_TIME_KEY = "_timestamp"
_MOST_STEP = 1 << 53
"""Up to which doubles hold whole numbers exactly."""


class WandbFileReader:
    """History rows of one run file."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._held = bytearray()
        self._offset = 0
        """In the file, of the first byte held."""
        self.run: pb.Run | None = None
        """The run that the file is of, once it names it."""
        self._record: bytearray | None = None
        """The pieces of a record so far; None outside of one, or in one that is too long."""
        self._foreign = False

    def feed(self, data: bytes) -> Iterator[MetricRow]:
        if self._foreign:
            return
        self._held += data
        if self._offset == 0:
            if len(self._held) < _FILE_HEADER.size:
                return
            self._foreign = _FILE_HEADER.unpack_from(self._held)[0] != _IDENT
            self._take(_FILE_HEADER.size)
        while not self._foreign and (piece := self._piece()) is not None:
            record = self._joined(*piece)
            row = None if record is None else self._row(record)
            if row is not None:
                yield row

    def flush(self) -> Iterator[MetricRow]:
        """Each row is complete at once."""
        return iter(())

    def _row(self, record: bytes) -> MetricRow | None:
        try:
            found = pb.RunRecord.FromString(record)
        except DecodeError:
            return None
        if found.HasField("run"):
            self.run = found.run
        return _row(found.history)

    def _take(self, count: int) -> bytes:
        taken = bytes(self._held[:count])
        del self._held[:count]
        self._offset += count
        return taken

    def _piece(self) -> tuple[int, bytes] | None:
        """The next piece of a record; None until there is one."""
        left = _BLOCK_BYTES - self._offset % _BLOCK_BYTES
        if left < _PIECE_HEADER.size:
            # The rest of a block that no header fits into is zeros.
            if len(self._held) < left:
                return None
            self._take(left)
            left = _BLOCK_BYTES
        if len(self._held) < _PIECE_HEADER.size:
            return None
        checksum, length, kind = _PIECE_HEADER.unpack_from(self._held)
        if length > left - _PIECE_HEADER.size or not _FULL <= kind <= _LAST:
            return self._next_block(left)
        if len(self._held) < _PIECE_HEADER.size + length:
            return None
        self._take(_PIECE_HEADER.size)
        data = self._take(length)
        if zlib.crc32(data, zlib.crc32(bytes([kind]))) != checksum:
            return kind, b""
        return kind, data

    def _next_block(self, left: int) -> tuple[int, bytes] | None:
        """Go on at the next block, as a piece of a record that is none; None until it is there."""
        if len(self._held) < left:
            return None
        self._take(left)
        return _FIRST, b""

    def _joined(self, kind: int, data: bytes) -> bytes | None:
        """The record that a piece ends."""
        if kind == _FULL:
            self._record = None
            return data
        if kind == _FIRST:
            self._record = bytearray(data)
            return None
        if self._record is None:
            return None
        self._record += data
        if len(self._record) > _MOST_BYTES:
            self._record = None
            return None
        if kind == _MIDDLE:
            return None
        whole, self._record = bytes(self._record), None
        return whole


def _row(history: pb.History) -> MetricRow | None:
    values: dict[str, float] = {}
    for item in history.item:
        key = item.key or ".".join(item.nested_key)
        number = _number(item)
        if key and number is not None and math.isfinite(number) and len(values) < MAX_KEYS:
            values[key] = number
    step = next((values[key] for key in _STEP_KEYS if key in values), None)
    if step is None and history.HasField("step"):
        step = history.step.num
    if step is None or step != int(step) or not 0 <= step < _MOST_STEP:
        return None
    time_s = values.get(_TIME_KEY, 0.0)
    return MetricRow(
        step=int(step),
        values={key: value for key, value in values.items() if not key.startswith("_")},
        unix_ns=round(time_s * 1e9) if 0 < time_s < 1e10 else None,
    )


def _number(item: pb.HistoryItem) -> float | None:
    kind = item.WhichOneof("value")
    if kind is not None:
        return float(item.integer if kind == "integer" else item.number)
    if not item.value_json or len(item.value_json) > 64:
        return None
    try:
        value = msgspec.json.decode(item.value_json)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 else None
