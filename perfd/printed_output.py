"""What a job printed, from the program that runs it to the collector of training logs in another thread."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

_STUCK_AFTER_S = 5.0
"""How long what is full waits to be read. Chosen."""
_MAX_BYTES = 16 << 20
"""Held at most: two reads of the collector. Chosen, not measured."""


class PrintedPiece(NamedTuple):
    """Bytes that a job printed, and when."""

    data: bytes
    unix_ns: int
    last: bool = False
    """Whether the job has ended its output with these bytes, which may be none."""


class PrintedOutput:
    """A bounded queue of what a job prints; one thread adds to it, another one takes.

    A collector that takes nothing for a while, because it is disabled or hangs, gets nothing
    more: it must not block the writer.
    """

    def __init__(self, *, max_bytes: int = _MAX_BYTES, stuck_after_s: float = _STUCK_AFTER_S) -> None:
        self._max_bytes = max_bytes
        self._stuck_after_s = stuck_after_s
        self._pieces: deque[PrintedPiece] = deque()
        self._held_bytes = 0
        self._taken = threading.Condition()
        self.complete = True
        """Whether nothing was left out."""

    def add(self, data: bytes, unix_ns: int) -> None:
        """Append bytes printed at this time; while too many wait, blocks until some are taken, or for 5 s."""
        with self._taken:
            if self.complete and self._held_bytes >= self._max_bytes:
                self.complete = self._taken.wait_for(
                    lambda: self._held_bytes < self._max_bytes, self._stuck_after_s
                )
            if self.complete:
                self._pieces.append(PrintedPiece(data, unix_ns))
                self._held_bytes += len(data)

    def take(self, limit_bytes: int) -> list[PrintedPiece]:
        """Remove and return the oldest bytes, at most `limit_bytes`."""
        taken: list[PrintedPiece] = []
        with self._taken:
            while self._pieces and limit_bytes > 0:
                piece = self._pieces.popleft()
                if len(piece.data) > limit_bytes:
                    self._pieces.appendleft(piece._replace(data=piece.data[limit_bytes:]))
                    piece = PrintedPiece(piece.data[:limit_bytes], piece.unix_ns)
                limit_bytes -= len(piece.data)
                self._held_bytes -= len(piece.data)
                taken.append(piece)
            self._taken.notify_all()
        return taken

    def end(self, unix_ns: int, timeout_s: float) -> bool:
        """End the output, and wait until all is taken; False if that takes longer, or not all was kept."""
        with self._taken:
            self._pieces.append(PrintedPiece(b"", unix_ns, last=True))
            return self._taken.wait_for(lambda: not self._pieces, timeout_s) and self.complete
