"""The training's steps in the logs of the pods of one job on this node.

Each container's log is followed through rotation, compression and restarts of the container.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from perfd.file_access import open_as_owner
from perfd.model import JobDescription, Record, TrainingStep
from perfd_collectors.pods.log_files import LogFile, log_files
from perfd_collectors.pods.pod_parsers import JobPieces, LogPiece, PodParsers

_READ_BYTES = 1 << 20
"""Size of one read, so that one container's backlog leaves time for the others."""
_GIVE_UP_BYTES = 64 << 20
"""A container that has printed so much without a step trains nothing. Chosen, not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """Bytes of a container's log, in order."""

    data: bytes
    restarted: bool = False
    """They are the first of a container that was started again."""
    first: bool = False
    """They are the first that a container printed since it was started, for the first time or again."""
    gap: bool = False
    """Bytes before them were lost."""


class ContainerLog:
    """Reads the files of a container, from the oldest of its newest start.

    A file that the kubelet renames stays open. The next one is read once the older one had nothing more to
    say in a look after the next one was there: the runtime may still write to the older one for a moment.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: BinaryIO | None = None
        self._raw: BinaryIO | None = None
        """The file itself, where `_open` decompresses it."""
        self._current: LogFile | None = None
        self._identity: tuple[int, int] | None = None
        self._known: set[tuple[int, str]] = set()
        self._opened_live = False
        self._successor_seen = False
        self._given_up = False
        self._gap = False
        self._restarted = False
        self._first = False

    def read(self, limit_bytes: int) -> list[LogPart]:
        """What is new, at most `limit_bytes`. Raises `OSError` when a file cannot be opened; try again."""
        parts: list[LogPart] = []
        if self._given_up:
            return parts
        files = log_files(self._folder)
        if self._open is None:
            newest = max((file.attempt for file in files), default=0)
            first = next((file for file in files if file.attempt == newest), None)
            if first is None:
                return parts
            self._begin(first)
            # Where it was rotated before, files may have been deleted.
            self._first = first.live
        while limit_bytes > 0:
            limit_bytes -= self._drain(limit_bytes, parts)
            current = self._current
            following = None if current is None else self._following(current, files)
            if limit_bytes <= 0 or current is None or following is None:
                break
            if self._opened_live and not self._successor_seen:
                self._successor_seen = True
                break
            self._restarted |= following.attempt > current.attempt
            self._first |= following.attempt > current.attempt
            self._begin(following)
        self._known = {file.key for file in files}
        return parts

    def give_up(self) -> None:
        """Read no more of it."""
        self._given_up = True
        self.close()

    def close(self) -> None:
        """Close the file; legal twice."""
        for file in (self._open, self._raw):
            if file is not None:
                file.close()
        self._open = self._raw = None

    def _begin(self, file: LogFile) -> None:
        descriptor = open_as_owner(file.path)
        status = os.fstat(descriptor)
        self.close()
        self._raw = os.fdopen(descriptor, "rb", buffering=-1 if file.compressed else 0)
        self._open = gzip.GzipFile(fileobj=self._raw) if file.compressed else self._raw  # type: ignore[assignment]
        self._current, self._identity = file, (status.st_dev, status.st_ino)
        self._opened_live, self._successor_seen = file.live, False

    def _drain(self, limit_bytes: int, parts: list[LogPart]) -> int:
        taken = 0
        self._rewind_if_truncated()
        while taken < limit_bytes and self._open is not None:
            try:
                data = self._open.read(min(_READ_BYTES, limit_bytes - taken))
            except (OSError, EOFError, zlib.error):
                # A compressed file that is damaged ends here.
                self._gap = True
                break
            if not data:
                break
            taken += len(data)
            parts.append(LogPart(data=data, restarted=self._restarted, first=self._first, gap=self._gap))
            self._restarted = self._first = self._gap = False
        return taken

    def _rewind_if_truncated(self) -> None:
        if self._open is None or not self._opened_live:
            return
        if os.fstat(self._open.fileno()).st_size < self._open.tell():
            self._open.seek(0)
            self._gap = True

    def _following(self, current: LogFile, files: Sequence[LogFile]) -> LogFile | None:
        """The file after the one that is open; None while there is none."""
        renamed = next((file for file in files if not file.compressed and self._is_open(file)), None)
        if renamed is None and current.live:
            # Since the last look it was compressed under a new name, the first of those, or it was deleted.
            new = [file for file in files if file.key not in self._known and file.attempt == current.attempt]
            if not new or new[0].live:
                return next((file for file in files if file.key >= current.key), None)
            renamed = new[0]
        self._current = renamed or current
        return next((file for file in files if file.key > self._current.key), None)

    def _is_open(self, file: LogFile) -> bool:
        try:
            status = file.path.stat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity


@dataclass(slots=True)
class _Container:
    name: str
    log: ContainerLog
    read_bytes: int = 0
    after: list[str] = field(default_factory=list)
    """Containers of the job that had ended before it was made."""


class PodLogs:
    """Reads the containers of a job's pods. Nothing is reported before the first step or description."""

    def __init__(self, job: str, parsers: PodParsers) -> None:
        self.job = job
        """The job's name."""
        self._parsers = parsers
        self._containers: dict[Path, _Container] = {}
        self.drained = True
        """Whether the last read reached the end of all logs."""
        self.trains = False
        """Whether a container has printed steps."""

    def follows(self, folder: Path) -> bool:
        """Whether a container's folder is read."""
        return folder in self._containers

    def follow(self, pod: str, folder: Path, after: Collection[str] = ()) -> None:
        """Read a container's folder from now on; `after` are pods of the job that had ended before."""
        ended = [one.name for one in self._containers.values() if one.name.partition("/")[0] in after]
        self._containers[folder] = _Container(f"{pod}/{folder.name}", ContainerLog(folder), after=ended)

    def close(self) -> None:
        """Close all logs, and forget what they had; legal twice."""
        for container in self._containers.values():
            container.log.close()
        self._containers.clear()
        self._parsers.forget(self.job)

    def read(self, limit_bytes: int, now_unix_ns: int) -> tuple[list[Record], int]:
        """The records of what is new, and how many bytes that was; at most `limit_bytes` are read.

        Raises `SandboxError` when what was read is lost: close these logs, and follow them anew.
        """
        self._parsers.ready(self.job)
        taken = 0
        pieces: list[LogPiece] = []
        for folder in self._in_turn():
            if taken >= limit_bytes:
                break
            taken += self._read(self._containers[folder], limit_bytes - taken, pieces)
        names = [container.name for container in self._containers.values()]
        new = JobPieces(job=self.job, now_unix_ns=now_unix_ns, containers=names, pieces=pieces)
        records = list(self._parsers.records(new))
        self.drained = taken == 0
        self.trains |= any(isinstance(record, TrainingStep | JobDescription) for record in records)
        return records if self.trains else [], taken

    def _in_turn(self) -> list[Path]:
        """The one that was first goes to the end, so that a chatty one does not silence the others."""
        folders = list(self._containers)
        if folders:
            self._containers[folders[0]] = self._containers.pop(folders[0])
        return folders

    def _read(self, container: _Container, limit_bytes: int, pieces: list[LogPiece]) -> int:
        before = container.read_bytes
        for part in container.log.read(limit_bytes):
            piece = LogPiece(
                container=container.name,
                data=part.data,
                restarted=part.restarted,
                gap=part.gap,
                first=part.first,
                after=[container.name] if part.restarted else [] if container.read_bytes else container.after,
            )
            container.read_bytes += len(part.data)
            pieces.append(piece)
        if not self.trains and container.read_bytes > _GIVE_UP_BYTES:
            container.log.give_up()
        return container.read_bytes - before
