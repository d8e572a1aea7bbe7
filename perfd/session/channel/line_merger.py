"""Merges a job's output streams into one log of whole lines."""

from __future__ import annotations

MAX_LINE_BYTES = 1024 * 1024
"""Longer lines are not log lines; the rest of them is dropped."""


class LineMerger:
    """Takes chunks of several streams and returns the lines that they complete.

    Chunks end anywhere. Simply concatenated, the end of one stream's line could run
    into the middle of another's and form a line that the job never printed.
    A carriage return ends a line, too: a progress bar may print nothing else for hours.
    """

    def __init__(self) -> None:
        self._partial: dict[int, bytearray] = {}
        self._overlong: set[int] = set()

    def add(self, stream: int, chunk: bytes) -> bytes:
        """The lines that `chunk` completes, including line ends."""
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if not end:
            self._keep(stream, chunk)
            return b""
        whole = chunk[:end]
        if stream in self._overlong:
            self._overlong.discard(stream)
            whole = whole[_first_end(whole) :]
        else:
            whole = bytes(self._partial.pop(stream, b"")) + whole
        self._keep(stream, chunk[end:])
        return whole

    def rest(self) -> bytes:
        """The unfinished lines at the end of all streams, one per line."""
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


def _first_end(lines: bytes) -> int:
    """Where the first line is over."""
    return min(at for sign in (b"\n", b"\r") if (at := lines.find(sign) + 1))
