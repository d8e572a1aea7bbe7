"""Feeds the job's log to its collector through our standard input."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
from collections.abc import Sequence

from perfd.model import LogProgress, Record

_STUCK_AFTER_S = 5.0
_PIECE_BYTES = 64 * 1024
_PIPE_BYTES = 1024 * 1024
_STREAM = "stdin"
"""The name that the collector gives to standard input."""


class LogPipe:
    """A pipe that becomes standard input, which the collector of training logs reads.

    A collector that reads nothing for a while, because it is disabled or hangs, gets
    nothing more: it must not block the writer.
    """

    def __init__(self, stdin_fd: int = 0) -> None:
        read_fd, self._write_fd = os.pipe()
        os.dup2(read_fd, stdin_fd)
        os.close(read_fd)
        os.set_blocking(self._write_fd, False)
        # The collector empties the pipe a few times per second: its size limits the throughput.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._write_fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._fed_bytes = 0
        self._stuck = False
        self._seen = threading.Condition()
        self._seen_bytes = 0

    def write(self, data: bytes) -> None:
        """Pass on whole lines."""
        view = memoryview(data)
        while view and not self._stuck:
            if not select.select([], [self._write_fd], [], _STUCK_AFTER_S)[1]:
                self._stuck = True
                return
            written = os.write(self._write_fd, view[:_PIECE_BYTES])
            self._fed_bytes += written
            view = view[written:]

    def observe(self, records: Sequence[Record]) -> None:
        """Update the collector's read position from the records that it returned."""
        for record in records:
            if isinstance(record, LogProgress) and record.stream == _STREAM:
                with self._seen:
                    self._seen_bytes = max(self._seen_bytes, record.read_bytes)
                    self._seen.notify_all()

    def finish(self, timeout_s: float) -> bool:
        """End the log; True if the collector reads all of it within `timeout_s`."""
        os.close(self._write_fd)
        with self._seen:
            return not self._stuck and self._seen.wait_for(
                lambda: self._seen_bytes >= self._fed_bytes, timeout_s
            )
