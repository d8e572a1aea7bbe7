"""A server's log while it is written: new lines only, rotation and truncation included."""

from __future__ import annotations

from pathlib import Path

from perfd.analysis.serving.snapshot import Snapshot
from perfd_collectors.serving.logs import EngineLog, engine_logs

_READ_BYTES = 1024 * 1024
_MAX_LINE_BYTES = 256 * 1024


class FollowedLog:
    """Reads what was appended since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode: int | None = None
        self._rest = b""
        self._logs: tuple[EngineLog, ...] = engine_logs()

    def read(self) -> Snapshot | None:
        """The state after the new lines; None when there were none that tell anything."""
        try:
            with self._path.open("rb") as file:
                size, inode = self._path.stat().st_size, self._path.stat().st_ino
                if inode != self._inode or size < self._offset:
                    self._offset, self._rest, self._inode = 0, b"", inode
                file.seek(self._offset)
                new = file.read(_READ_BYTES)
        except OSError:
            return None
        self._offset += len(new)
        *lines, rest = (self._rest + new).split(b"\n")
        # A line without end is no line of an engine.
        self._rest = rest if len(rest) <= _MAX_LINE_BYTES else b""
        known = [log for line in lines for log in self._logs if log.line(line.decode("utf-8", "replace"))]
        return known[-1].snapshot() if known else None
