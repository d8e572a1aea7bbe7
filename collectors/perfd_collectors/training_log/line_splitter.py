"""Splits bytes into complete lines of bounded length."""

from __future__ import annotations

MAX_LINE_BYTES = 64 * 1024
"""Longer lines are dropped: no trainer prints them."""
_SLICE_BYTES = 1 << 20
"""Processed at a time, which bounds memory."""


class LineBuffer:
    """Splits a stream of bytes into blocks of complete lines; buffers the unfinished line.

    A carriage return also ends a line, because progress bars print nothing else.
    Lines longer than `MAX_LINE_BYTES` are dropped.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._skipping = False
        self.dropped_lines = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Blocks of complete lines; each block ends with a newline."""
        view = memoryview(data)
        starts = range(0, len(data), _SLICE_BYTES)
        blocks = (self._feed_slice(bytes(view[start : start + _SLICE_BYTES])) for start in starts)
        return [block for block in blocks if block]

    def gap(self) -> None:
        """Drop the unfinished line and everything up to the next newline: bytes were lost."""
        self._hold(b"")
        self._skipping = True

    def restart(self) -> None:
        """Drop the unfinished line: the stream restarts at the start of a line."""
        self._hold(b"")
        self._skipping = False

    def rest(self) -> bytes:
        """Return and clear the unfinished line."""
        rest = b"".join(self._pieces)
        self.restart()
        return rest

    def _feed_slice(self, data: bytes) -> bytes:
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = data.rfind(b"\n") + 1
        if not end:
            self._grow(data)
            return b""
        first = data.find(b"\n") + 1
        whole = data[:end] if not self._skipping else data[first:end]
        if self._pieces:
            whole = b"".join([*self._pieces, whole])
        self._skipping = False
        self._hold(data[end:])
        return whole

    def _grow(self, data: bytes) -> None:
        if self._skipping:
            return
        self._pieces.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > MAX_LINE_BYTES:
            self.dropped_lines += 1
            self.gap()

    def _hold(self, data: bytes) -> None:
        self._pieces = [data] if data else []
        self._held_bytes = len(data)
