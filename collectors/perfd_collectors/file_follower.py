"""Follows growing files through rotation, truncation and replacement, and picks up new ones."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from perfd.file_access import open_as_owner

READ_BYTES = 1 << 20
"""Largest chunk, so that a large backlog is read in parts."""
_FINGERPRINT_BYTES = 64
"""Bytes before the read position that are compared to detect a replaced file: about a log line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Bytes appended to a stream, in order."""

    stream: str
    data: bytes = b""
    begins_anew: bool = False
    """Before these bytes the stream's file was replaced or truncated."""
    attached: bool = False
    """Earlier bytes of the stream were not read."""
    lost: bool = False
    """These bytes start inside a line whose beginning was not read."""
    ended: bool = False
    """The stream has ended after these bytes."""
    backlog: bool = False
    """More of the stream is available already: these bytes may be old."""
    newest_unix_ns: int | None = None
    """When the last of these bytes was written; None means just now."""


class _Tail:
    """An open file and its read position."""

    def __init__(self, descriptor: int, identity: tuple[int, int], stream: str, offset: int) -> None:
        self.descriptor = descriptor
        self.identity = identity
        self.stream = stream
        self.offset = offset
        self.fresh = True
        self._fingerprint = b""

    def was_truncated(self) -> bool:
        """Whether the file was truncated since the last read.

        One that has grown past the offset again is detected by the bytes before the offset.
        """
        if self.offset > os.fstat(self.descriptor).st_size:
            return True
        before = os.pread(self.descriptor, len(self._fingerprint), self.offset - len(self._fingerprint))
        return before != self._fingerprint

    def rewind(self) -> None:
        self.offset, self._fingerprint = 0, b""

    def read(self, limit: int) -> bytes:
        data = os.pread(self.descriptor, limit, self.offset)
        self.offset += len(data)
        self._fingerprint = (self._fingerprint + data[-_FINGERPRINT_BYTES:])[-_FINGERPRINT_BYTES:]
        return data

    def inside_line(self) -> bool:
        """Whether the offset is not at the start of a line."""
        return self.offset > 0 and os.pread(self.descriptor, 1, self.offset - 1) != b"\n"

    def written_unix_ns(self) -> int | None:
        """When the file was last written; None if not all of it was read."""
        status = os.fstat(self.descriptor)
        return status.st_mtime_ns if status.st_size == self.offset else None


class FileFollower:
    """Follows the files that `find` returns, each as a separate stream.

    Files are identified by inode, so that a renamed one is not read twice. The
    initial content of a file is skipped unless `from_start`; files that appear
    later are always read from their start.
    """

    def __init__(self, find: Callable[[], Mapping[str, Path]], *, from_start: bool) -> None:
        self._find = find
        self._from_start = from_start
        self._tails: dict[tuple[int, int], _Tail] = {}
        self._streams: set[str] = set()
        self._turn = 0

    def poll(self, limit_bytes: int) -> list[Chunk]:
        """Chunks written since the last call, at most `limit_bytes`; files take turns when there is more."""
        named = self._scan()
        chunks: list[Chunk] = []
        tails = sorted(self._tails.values(), key=lambda tail: tail.identity not in named)
        self._turn += 1
        for index in range(len(tails)):
            tail = tails[(index + self._turn) % len(tails)]
            if tail.identity in named and self._older(tail, named):
                # The file that had this name before is read first.
                continue
            try:
                limit_bytes -= self._read(tail, limit_bytes, chunks)
            except OSError:
                # One file that cannot be read, as on a server that is gone, keeps no other one waiting.
                self._drop(tail)
        self._drop_drained(named, chunks)
        return chunks

    def close(self) -> None:
        """Close all files."""
        for tail in self._tails.values():
            os.close(tail.descriptor)
        self._tails.clear()

    def _scan(self) -> set[tuple[int, int]]:
        """Open new files; returns the identities of all files found."""
        named: set[tuple[int, int]] = set()
        for stream, path in self._find().items():
            # A file can vanish or become unreadable at any time; the next poll tries again.
            with contextlib.suppress(OSError):
                status = path.stat()
                identity = status.st_dev, status.st_ino
                named.add(identity)
                if identity not in self._tails:
                    self._open(stream, path)
        self._from_start = True
        return named

    def _open(self, stream: str, path: Path) -> None:
        # A user can link its log to a file that only root may read.
        descriptor = open_as_owner(path)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            # It was exchanged for a pipe or a device since it was found.
            os.close(descriptor)
            return
        offset = 0 if self._from_start else status.st_size
        identity = status.st_dev, status.st_ino
        if identity in self._tails:
            os.close(descriptor)
            return
        self._tails[identity] = _Tail(descriptor, identity, stream, offset)

    def _older(self, tail: _Tail, named: set[tuple[int, int]]) -> bool:
        return any(
            other.stream == tail.stream and other.identity not in named for other in self._tails.values()
        )

    def _read(self, tail: _Tail, limit_bytes: int, chunks: list[Chunk]) -> int:
        taken = 0
        anew = tail.fresh and tail.stream in self._streams
        attached = tail.fresh and tail.offset > 0
        if not tail.fresh and tail.was_truncated():
            tail.rewind()
            anew = True
        while taken < limit_bytes:
            lost = attached and tail.inside_line()
            data = tail.read(min(READ_BYTES, limit_bytes - taken))
            if not data and not (anew or attached):
                break
            taken += len(data)
            written_unix_ns = tail.written_unix_ns()
            chunks.append(
                Chunk(
                    stream=tail.stream,
                    data=data,
                    begins_anew=anew,
                    attached=attached,
                    lost=lost,
                    backlog=written_unix_ns is None,
                    newest_unix_ns=written_unix_ns,
                )
            )
            anew = attached = tail.fresh = False
            self._streams.add(tail.stream)
        return taken

    def _drop_drained(self, named: set[tuple[int, int]], chunks: list[Chunk]) -> None:
        """Close files that were deleted or renamed and have no more data."""
        active = {chunk.stream for chunk in chunks}
        for identity, tail in list(self._tails.items()):
            if identity not in named and tail.stream not in active:
                self._drop(tail)

    def _drop(self, tail: _Tail) -> None:
        os.close(tail.descriptor)
        del self._tails[tail.identity]
