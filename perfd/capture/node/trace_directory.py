"""Folders in a job's own file system for its traces: created, emptied and removed without following links.

A process in a container has another file system than the agent, and a process of another user cannot write
into the agent's folder. Each trace is therefore written where its process can write, and then fetched.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from perfd.errors import CaptureError
from perfd.file_access import as_user, opened_inside
from perfd.formatting import data_size

_PREFIX = "perfd-"
_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SEPARATOR = "!"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDirectory:
    """A folder that one process writes its trace to."""

    root: Path
    """The process's root directory as we see it."""
    place: PurePosixPath
    """The folder that ours is in, as the process sees it."""
    name: str

    @property
    def inside(self) -> PurePosixPath:
        """The folder as the process sees it."""
        return self.place / self.name

    @property
    def handle(self) -> str:
        """What another agent needs to remove it."""
        return _SEPARATOR.join((str(self.root), str(self.place), self.name))

    def create(self, uid: int, gid: int) -> None:
        """Create the folder, private to that user; raises `CaptureError`."""
        try:
            with self._place() as place:
                as_user(uid, lambda: os.mkdir(self.name, 0o700, dir_fd=place))
                if os.stat(self.name, dir_fd=place, follow_symlinks=False).st_uid != uid:
                    os.chown(self.name, uid, gid, dir_fd=place, follow_symlinks=False)
        except OSError as error:
            raise CaptureError(
                f"Cannot create {self.inside} for the process's trace: {error.strerror}; "
                "run the agent as the job's user or as root."
            ) from error

    def mark(self, pid: int, until_unix_s: float, uid: int, gid: int) -> None:
        """Keep the process with that pid in its namespace from ending before then (`perfd_at_exit`)."""
        name = _mark(pid)
        self.unmark(pid)
        with contextlib.suppress(OSError), self._place() as place:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = as_user(uid, lambda: os.open(name, flags, 0o600, dir_fd=place))
            with open(descriptor, "w") as file:  # noqa: PTH123  (a descriptor)
                file.write(f"{until_unix_s:.3f}")
                if os.fstat(descriptor).st_uid != uid:
                    os.fchown(file.fileno(), uid, gid)

    def unmark(self, pid: int) -> None:
        """Let it end; may be called without a mark."""
        with contextlib.suppress(OSError), self._place() as place:
            _as_owner(_mark(pid), place, lambda: os.unlink(_mark(pid), dir_fd=place))

    def names(self) -> list[str]:
        """Its content; empty if it is gone."""
        try:
            with self._open() as folder:
                return os.listdir(folder)  # noqa: PTH208  (a descriptor)
        except OSError:
            return []

    def fetch(self, name: str, to: Path, *, max_bytes: int) -> None:
        """Fetch a whole file from it; raises `CaptureError` for a link, a device, or too large a file."""
        try:
            with self._open() as folder:
                source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
                with open(source, "rb") as file:  # noqa: PTH123  (a descriptor)
                    self._check(name, os.fstat(source), max_bytes)
                    _copy(file, to)
        except OSError as error:
            raise CaptureError(f"Cannot read {self.inside / name}: {error.strerror}.") from error

    def _check(self, name: str, status: os.stat_result, max_bytes: int) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise CaptureError(f"{self.inside / name} is not a regular file.")
        if status.st_size > max_bytes:
            raise CaptureError(
                f"The trace has {data_size(status.st_size)}; "
                f"{data_size(max_bytes)} are left for this capture."
            )

    def remove(self) -> None:
        """Delete it with its content, if it exists."""
        with contextlib.suppress(OSError), self._place() as place:
            _as_owner(self.name, place, lambda: shutil.rmtree(self.name, dir_fd=place))

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        with self._place() as place:
            folder = os.open(self.name, os.O_RDONLY | _DIRECTORY, dir_fd=place)
            try:
                yield folder
            finally:
                os.close(folder)

    def _place(self) -> contextlib.AbstractContextManager[int]:
        """The folder that ours is in."""
        return opened_inside(self.root, self.place)


def _as_owner(name: str, place: int, action: Callable[[], None]) -> None:
    """Delete what is a user's with that user's rights, as one must in a folder like /tmp."""
    as_user(os.stat(name, dir_fd=place, follow_symlinks=False).st_uid, action)


def _mark(pid: int) -> str:
    """The same name as in `perfd_at_exit`."""
    return f"perfd-kineto-until-{pid}"


def _copy(file: BinaryIO, to: Path) -> None:
    try:
        with to.open("xb") as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
    except OSError as error:
        with contextlib.suppress(OSError):
            to.unlink(missing_ok=True)
        raise CaptureError(f"The trace cannot be kept as {to}: {error.strerror}.") from error


def plan_trace_directory(proc: Path, pid: int, place: str, *, source: str, profiler: str) -> TraceDirectory:
    """A folder of a new name below `place` in the file system of a process; raises `CaptureError`.

    `source` is the setting that named the place, `profiler` a part of the new name.
    """
    path = PurePosixPath(place)
    if not path.is_absolute() or ".." in path.parts or set("=\n!") & set(place):
        raise CaptureError(f"{place!r} ({source}) cannot hold traces; use a plain path.")
    root = proc / str(pid) / "root"
    try:
        # Our own root outlives the process.
        root = Path("/") if root.samefile("/") else root
    except OSError as error:
        raise CaptureError(
            f"The file system of process {pid} cannot be seen: {error.strerror}; "
            "run the agent as the job's user or as root."
        ) from error
    return TraceDirectory(root=root, place=path, name=f"{_PREFIX}{profiler}-{secrets.token_hex(8)}")


def trace_directory_of(handle: str) -> TraceDirectory | None:
    """The folder that a handle names; None for a handle of something else."""
    parts = handle.split(_SEPARATOR)
    if len(parts) != 3 or not parts[2].startswith(_PREFIX) or "/" in parts[2]:
        return None
    return TraceDirectory(root=Path(parts[0]), place=PurePosixPath(parts[1]), name=parts[2])
