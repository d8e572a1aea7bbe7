"""What a write-ahead log holds that is committed, found without SQLite.

SQLite reads a log up to its first damaged frame, and says nothing. Here a damaged frame costs itself only.
The format is described at https://sqlite.org/fileformat2.html#walformat.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = 0x377F0682
"""Magic number of a write-ahead log; its last bit is the byte order of the checksums."""
_WORD = 0xFFFFFFFF
"""Checksums are sums modulo 2^32."""


def committed_pages(read: Callable[[int, int], bytes], page_bytes: int) -> dict[int, int]:
    """Where in the log the newest committed content of each page begins.

    `read` returns so many bytes from an offset on, fewer at the end.
    """
    header = read(0, _HEADER.size)
    if len(header) < _HEADER.size:
        return {}
    magic, _, size, _, *salts, _, _ = _HEADER.unpack(header)
    if magic & ~1 != _MAGIC or size != page_bytes:
        return {}
    words = struct.Struct(">II" if magic & 1 else "<II")
    sums = _checksum(words, (0, 0), header[:24])
    committed: dict[int, int] = {}
    pending: dict[int, int] = {}
    offset = _HEADER.size
    while len(frame := read(offset, _FRAME.size + page_bytes)) == _FRAME.size + page_bytes:
        number, is_commit, salt1, salt2, *stated = _FRAME.unpack_from(frame)
        if [salt1, salt2] != salts:
            # From here on, frames are of a log that was written over.
            break
        sums = _checksum(words, _checksum(words, sums, frame[:8]), frame[_FRAME.size :])
        if sums == (stated[0], stated[1]):
            pending[number] = offset + _FRAME.size
            if is_commit:
                committed |= pending
                pending.clear()
        # Each frame's sum goes on from the stated one of the frame before.
        sums = stated[0], stated[1]
        offset += len(frame)
    return committed


def _checksum(words: struct.Struct, sums: tuple[int, int], data: bytes) -> tuple[int, int]:
    first, second = sums
    for even, odd in words.iter_unpack(data):
        first = (first + even + second) & _WORD
        second = (second + odd + first) & _WORD
    return first, second
