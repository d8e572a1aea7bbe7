"""Segments of made-up ranks, written as the NCCL plugin writes them by a process that lives."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

HEADER = struct.Struct("<4sIQIIIIiiiIQQ")
RECORD = struct.Struct("<QQQQQQQQQQiHBBBBBBBBB33x")
_COMMUNICATOR = struct.Struct("<QiiiIQ24sQ")
_COUNTERS = struct.Struct("<IIQQQQQ")
_COUNTERS_AT, _TABLE_AT, RING_AT = 256, 4096, 4096 + 256 * 64
_ENTRIES = 4096
_ALL_REDUCE, _FLOAT32, _BY_GPU = 4, 7, 3
_AFTER_STOP_NS = 3_500
"""What a kernel runs before its first and after its last timestamp, which the agent adds."""


class RankSegment:
    """The segment of one rank, on one communicator of all ranks."""

    def __init__(self, path: Path, rank: int, ranks: int, now_ns: int) -> None:
        size = RING_AT + 64 + _ENTRIES * RECORD.size
        content = bytearray(size)
        HEADER.pack_into(
            content, 0, b"NCL1", 1, size, os.getpid(), _ENTRIES, RECORD.size, 256,
            rank, rank, ranks, 5, now_ns, 0,
        )  # fmt: skip
        _COMMUNICATOR.pack_into(content, _TABLE_AT, 100, rank, ranks, 1, 1, 0, b"world", 1 << 63 | rank << 8)
        path.write_bytes(content)
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._written = 0
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def all_reduce(self, elements: int, end_ns: int, duration_ns: int) -> None:
        """Add one of so many floats that ended at `end_ns` of the monotonic clock, which is the GPU's too."""
        number = self._written
        stop_ns = end_ns - _AFTER_STOP_NS
        start_ns = end_ns - duration_ns
        record = RECORD.pack(
            number + 1, number, start_ns - 10_000, start_ns - 5_000, end_ns, start_ns, stop_ns, 0, elements,
            number + 1, 0, 0, _ALL_REDUCE, _FLOAT32, 1, 2, 16, 16, _BY_GPU, 0, 0,
        )  # fmt: skip
        os.pwrite(self._file, record, RING_AT + 64 + number % _ENTRIES * RECORD.size)
        self._written += 1
        os.pwrite(self._file, struct.pack("<Q", self._written), RING_AT)
        os.pwrite(self._file, _COUNTERS.pack(1, 0, self._written, self._written, 0, 0, 0), _COUNTERS_AT)

    def close(self) -> None:
        """End the process, as far as its file shows."""
        os.close(self._file)
