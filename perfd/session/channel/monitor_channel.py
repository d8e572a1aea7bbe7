"""The pipe from `perfd run` to its monitor: the job's output, bounded and never blocking it, and its end.

A frame is a header (kind, time, length) and that many bytes. The end of the pipe
without an `ENDED` frame means that `perfd run` itself was killed.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import BinaryIO

from perfd.clock import Clock

_HEADER = struct.Struct("<BqI")
MAX_QUEUED_BYTES = 16 * 1024 * 1024
"""That the monitor has not read: a second of output at the fastest pace."""
MAX_BYTES_PER_S = 16 * 1024 * 1024
"""More than any readable log prints; beyond this rate lines are dropped, which limits the monitor's CPU."""
_BURST_S = 0.25
"""How far output may be ahead of the monitor's pace before it is slowed down."""


class FrameKind(IntEnum):
    """Kinds of frames."""

    SETTINGS = 0
    """JSON of `MonitorSettings`; always the first frame."""
    STDOUT = 1
    STDERR = 2
    STARTED = 3
    """The process id of the job, in decimal."""
    DROPPED = 4
    """Bytes of output dropped here, in decimal: the monitor did not keep up."""
    ENDED = 5
    """The exit code of the job, in decimal."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message; its kind defines `payload`."""

    kind: FrameKind
    unix_ns: int
    payload: bytes


def header(kind: FrameKind, unix_ns: int, length: int) -> bytes:
    """The header of a payload of `length` bytes."""
    return _HEADER.pack(kind, unix_ns, length)


def read_frames(pipe: BinaryIO) -> Iterator[Frame]:
    """The frames of a buffered binary file; an incomplete last frame is dropped."""
    while len(head := pipe.read(_HEADER.size)) == _HEADER.size:
        kind, unix_ns, length = _HEADER.unpack(head)
        payload = pipe.read(length)
        if len(payload) < length:
            return
        yield Frame(FrameKind(kind), unix_ns, payload)


class MonitorChannel:
    """Takes frames without ever blocking, and writes them to the monitor from a separate thread.

    If the monitor does not keep up, whole lines are dropped and counted: half a line
    could be parsed as a value that the job never printed.
    """

    def __init__(self, pipe_fd: int, clock: Clock, *, max_queued_bytes: int = MAX_QUEUED_BYTES) -> None:
        self._pipe_fd = pipe_fd
        self._clock = clock
        self._max_queued_bytes = max_queued_bytes
        self._changed = threading.Condition()
        self._queue: deque[tuple[FrameKind, int, bytes]] = deque()
        self._queued_bytes = 0
        self._skipping: set[FrameKind] = set()
        self._dropped_bytes = 0
        self._closing = False
        self._deaf = False
        self._thread = threading.Thread(target=self._send_all, name="perfd-feed", daemon=True)

    def start(self) -> None:
        """Start sending; until then frames wait in the queue."""
        self._thread.start()

    def offer(self, kind: FrameKind, chunk: bytes) -> None:
        """Take some output of the job, or drop it when the queue is full."""
        with self._changed:
            if self._deaf:
                return
            if kind in self._skipping:
                self._resume(kind, chunk)
            elif self._queued_bytes + len(chunk) > self._max_queued_bytes:
                self._skipping.add(kind)
                self._dropped_bytes += self._cut_last_line(kind) + len(chunk)
            else:
                self._append(kind, chunk)

    def send(self, kind: FrameKind, text: str) -> None:
        """Take a control frame, which is never dropped."""
        with self._changed:
            self._append(kind, text.encode())

    def close(self, timeout_s: float) -> None:
        """Send what is queued, for at most `timeout_s`, and close the pipe."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def report_dropped(self) -> None:
        """Report to the monitor what was dropped since the last report."""
        with self._changed:
            if self._dropped_bytes:
                self._append(FrameKind.DROPPED, str(self._dropped_bytes).encode())
                self._dropped_bytes = 0

    def _append(self, kind: FrameKind, payload: bytes) -> None:
        self._queue.append((kind, self._clock.unix_ns(), payload))
        self._queued_bytes += len(payload)
        self._changed.notify()

    def _resume(self, kind: FrameKind, chunk: bytes) -> None:
        """Continue at the start of a line, once half of the queue is free again."""
        line_end = chunk.find(b"\n") + 1
        if not line_end or self._queued_bytes + len(chunk) > self._max_queued_bytes // 2:
            self._dropped_bytes += len(chunk)
            return
        self._skipping.discard(kind)
        self._dropped_bytes += line_end
        self._append(kind, chunk[line_end:])

    def _cut_last_line(self, kind: FrameKind) -> int:
        """Take the unfinished line of a stream out of the queue; returns its length."""
        removed = 0
        for position in range(len(self._queue) - 1, -1, -1):
            queued_kind, unix_ns, payload = self._queue[position]
            if queued_kind is not kind:
                continue
            whole, line_end, rest = payload.rpartition(b"\n")
            self._queue[position] = (queued_kind, unix_ns, whole + line_end)
            removed += len(rest)
            if line_end:
                break
        self._queued_bytes -= removed
        return removed

    def _send_all(self) -> None:
        free_at_s = self._clock.monotonic_s()
        try:
            while (item := self._take()) is not None:
                kind, unix_ns, payload = item
                _write_all(self._pipe_fd, header(kind, unix_ns, len(payload)))
                _write_all(self._pipe_fd, payload)
                now_s = self._clock.monotonic_s()
                free_at_s = max(free_at_s, now_s) + len(payload) / MAX_BYTES_PER_S
                if free_at_s - now_s > _BURST_S and not self._closing:
                    self._clock.sleep(free_at_s - now_s)
        except OSError:
            self._discard_from_now_on()
        finally:
            os.close(self._pipe_fd)

    def _take(self) -> tuple[FrameKind, int, bytes] | None:
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            if not self._queue:
                return None
            item = self._queue.popleft()
            self._queued_bytes -= len(item[2])
            return item

    def _discard_from_now_on(self) -> None:
        """The monitor is gone: the job continues, and its output is only passed through."""
        with self._changed:
            self._deaf = True
            self._queue.clear()
            self._queued_bytes = 0


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
