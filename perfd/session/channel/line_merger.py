"""One log out of the streams of a job, made of whole lines."""

from __future__ import annotations

MAX_LINE_BYTES = 1024 * 1024
"""What is longer is no line of a log; the rest of it is left out."""


class LineMerger:
    """Takes chunks of several streams, and gives the lines that they complete.

    Chunks end anywhere. Put together as they come, the end of one stream's line
    could run into the middle of another's and read as something nobody printed.
    """

    def __init__(self) -> None:
        self._partial: dict[int, bytearray] = {}
        self._overlong: set[int] = set()

    def add(self, stream: int, chunk: bytes) -> bytes:
        """The lines that `chunk` completes, their ends included."""
        head, line_end, tail = chunk.rpartition(b"\n")
        if not line_end:
            self._keep(stream, chunk)
            return b""
        if stream in self._overlong:
            self._overlong.discard(stream)
            head = head.partition(b"\n")[2] if b"\n" in head else b""
            whole = head + line_end if head else b""
        else:
            whole = bytes(self._partial.pop(stream, b"")) + head + line_end
        self._keep(stream, tail)
        return whole

    def rest(self) -> bytes:
        """What is left at the end of all streams: lines without an end, one below the other."""
        left = [bytes(partial) for partial in self._partial.values() if partial]
        self._partial.clear()
        return b"\n".join(left)

    def _keep(self, stream: int, chunk: bytes) -> None:
        if stream in self._overlong:
            return
        partial = self._partial.setdefault(stream, bytearray())
        partial += chunk
        if len(partial) > MAX_LINE_BYTES:
            del self._partial[stream]
            self._overlong.add(stream)
