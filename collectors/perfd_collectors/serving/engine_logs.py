"""Recognizes the engine that wrote a log, and follows it as it grows, through rotation and truncation."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Protocol

from perfd.analysis.serving import ServerSetup, Snapshot
from perfd_collectors.serving.server_scrape import with_info
from perfd_collectors.serving.sglang.log_lines import SglangLog
from perfd_collectors.serving.sglang.mini import MiniSglangLog
from perfd_collectors.serving.vllm.log_lines import VllmLog


class EngineLog(Protocol):
    """Reads the lines of one engine."""

    info: ServerSetup | None
    unrecognized: int

    def line(self, text: str) -> bool:
        """Parse one line; returns whether it is this engine's."""

    def snapshot(self) -> Snapshot | None:
        """The state after all lines; None without an informative one."""


def engine_logs() -> tuple[EngineLog, ...]:
    """A new reader per engine."""
    return SglangLog(), VllmLog(), MiniSglangLog()


def read_log(lines: Iterable[str]) -> EngineLog | None:
    """The log of the first engine whose lines suffice for a snapshot; None if there is none."""
    logs = engine_logs()
    for line in lines:
        for log in logs:
            if log.line(line):
                break
    return next((log for log in logs if log.snapshot() is not None), None)


_READ_BYTES = 1024 * 1024
"""Read at the start and at the end of a long backlog. Chosen, not measured."""
_MAX_LINE_BYTES = 256 * 1024
"""A longer unfinished line is dropped; bounds memory."""


class FollowedLog:
    """Reads the lines appended since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode: int | None = None
        self._rest = b""
        self._logs: tuple[EngineLog, ...] = engine_logs()
        self.info: ServerSetup | None = None
        """The server's configuration, from the log so far."""

    def read(self) -> Snapshot | None:
        """The state after the new lines; None without an informative one.

        Of a long backlog only the start, which has the server's configuration, and the end are read.
        """
        try:
            with self._path.open("rb") as file:
                state = os.fstat(file.fileno())
                if state.st_ino != self._inode or state.st_size < self._offset:
                    self._offset, self._rest, self._inode = 0, b"", state.st_ino
                lines = self._lines(file)
                if state.st_size - self._offset > _READ_BYTES:
                    self._offset, self._rest = state.st_size - _READ_BYTES, b""
                    # The first of these lines lacks its start.
                    lines += self._lines(file)[1:]
        except OSError:
            return None
        known = [log for line in lines for log in self._logs if log.line(line.decode("utf-8", "replace"))]
        if not known:
            return None
        self.info = known[-1].info
        snapshot = known[-1].snapshot()
        return None if snapshot is None else with_info(snapshot, self.info)

    def _lines(self, file: BinaryIO) -> list[bytes]:
        """The next complete lines, of at most `_READ_BYTES`."""
        file.seek(self._offset)
        new = file.read(_READ_BYTES)
        self._offset += len(new)
        *lines, rest = (self._rest + new).split(b"\n")
        # Too long for a line of an engine.
        self._rest = rest if len(rest) <= _MAX_LINE_BYTES else b""
        return lines
