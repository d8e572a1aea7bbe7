"""The captures on a node's disk: one private folder each, nothing outside, within limits."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from perfd.capture.node.read_lock import RECORD, is_read
from perfd.capture.node.retention import FolderWatch, OnRemoved
from perfd.capture.selection import check_capture_id
from perfd.errors import CaptureError
from perfd.formatting import data_size
from perfd.model import CaptureFile, CaptureRequest, CaptureStatus, CaptureTool


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRecord:
    """The record in a capture's folder, from which the next agent learns what this one did."""

    request: CaptureRequest
    handles: Sequence[str] = ()
    """The tool's handles while the capture is open."""
    open: bool = True
    statuses: Sequence[CaptureStatus] = field(default_factory=tuple)
    """The final statuses."""

    @property
    def tool(self) -> CaptureTool:
        """The requested tool."""
        return self.request.tool


def free_bytes(path: Path) -> int:
    """Free space of the file system that holds `path` (or will: the nearest parent that exists)."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


class CaptureStore:
    """The captures directory of a node. Folders are 0700 and files 0600: a report holds secrets."""

    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int,
        min_free_bytes: int,
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._min_free_bytes = min_free_bytes
        self._free = free

    def admit(self, capture_id: str) -> None:
        """Raise `CaptureError`, with what to do, if a new capture must not be stored."""
        check_capture_id(capture_id)
        if self.short_of_space():
            raise CaptureError(
                f"{self._directory} has {data_size(self._free(self._directory))} free and "
                f"{data_size(self._min_free_bytes)} must stay free; "
                "free some space or lower capture.min_free_bytes."
            )
        if (used := size_bytes(self._directory)) >= self._max_bytes:
            raise CaptureError(
                f"Captures in {self._directory} take {data_size(used)} of {data_size(self._max_bytes)}; "
                "delete old ones or raise capture.max_bytes."
            )

    def short_of_space(self) -> bool:
        """Whether free space is below the minimum."""
        return self._free(self._directory) < self._min_free_bytes

    def room_bytes(self, request: CaptureRequest) -> int:
        """How large a capture may grow: as requested, within the rest of the quota."""
        left = max(0, self._max_bytes - size_bytes(self._directory))
        return min(left, request.max_bytes) if request.max_bytes else left

    def create(self, record: CaptureRecord) -> Path:
        """Create the folder of a new capture; raises `CaptureError` if it exists or cannot be created."""
        folder = self._folder(record.request.capture_id)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
            try:
                self.save(record)
            except OSError:
                folder.rmdir()
                raise
        except FileExistsError as error:
            raise CaptureError(f"{folder} exists already; an id is used once.") from error
        except OSError as error:
            raise CaptureError(f"Cannot create {folder}: {error.strerror}.") from error
        return folder

    def save(self, record: CaptureRecord) -> None:
        """Write the record of a capture atomically."""
        path = self._folder(record.request.capture_id) / RECORD
        fresh = path.with_suffix(".new")
        try:
            fresh.touch(mode=0o600)
            fresh.write_bytes(msgspec.json.encode(record))
            fresh.replace(path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise

    def load(self, capture_id: str) -> CaptureRecord | None:
        """The record of an earlier capture with that id; None if there is none that can be read."""
        try:
            content = (self._folder(capture_id) / RECORD).read_bytes()
            return msgspec.json.decode(content, type=CaptureRecord)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def unfinished(self) -> list[CaptureRecord]:
        """Captures that an agent began and did not end."""
        return [record for record in self._records() if record.open]

    def remove_old(
        self,
        watch: FolderWatch,
        report_removed: OnRemoved,
        monotonic_s: float,
        needed: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Remove expired captures that are neither being read nor `needed`, by id; raises `OSError`.

        Must not be called while one may begin.
        """
        ended = [record.request.capture_id for record in self._records() if not record.open]
        if not self._directory.is_dir():
            return
        for capture_id in watch.look(ended, monotonic_s):
            folder = self._folder(capture_id)
            if not is_read(folder) and not needed(capture_id):
                report_removed(capture_id, sorted(folder.iterdir()), watch.why)
                shutil.rmtree(folder)

    def size_bytes(self, capture_id: str) -> int:
        """The current size of a capture."""
        return size_bytes(self._folder(capture_id))

    def seal(self, capture_id: str, files: Sequence[Path]) -> list[CaptureFile]:
        """Make everything in a capture's folder private, and describe these files of it.

        A file that is a link, or is not inside the capture's folder, is skipped.
        """
        folder = self._folder(capture_id)
        regular = [file for file in folder.iterdir() if stat.S_ISREG(file.lstat().st_mode)]
        for file in regular:
            file.chmod(0o600)
        return [
            CaptureFile(path=str(file), size_bytes=file.stat().st_size) for file in files if file in regular
        ]

    def discard(self, capture_id: str, *, keep: Sequence[Path] = ()) -> None:
        """Delete everything that a tool wrote for a capture except `keep`; its record stays."""
        for file in self._folder(capture_id).iterdir():
            if file.name == RECORD or file in keep:
                continue
            if file.is_dir() and not file.is_symlink():
                shutil.rmtree(file)
            else:
                file.unlink()

    def _records(self) -> list[CaptureRecord]:
        if not self._directory.is_dir():
            return []
        records = [self.load(entry.name) for entry in sorted(self._directory.iterdir()) if _plain(entry)]
        return [record for record in records if record is not None]

    def _folder(self, capture_id: str) -> Path:
        return self._directory / check_capture_id(capture_id)


def _plain(entry: Path) -> bool:
    """Whether this folder is ours."""
    try:
        check_capture_id(entry.name)
    except CaptureError:
        return False
    return entry.is_dir() and not entry.is_symlink()


def size_bytes(path: Path) -> int:
    """The size of the files below a folder; 0 if it does not exist."""
    total = 0
    for file in path.rglob("*"):
        try:
            status = file.lstat()
        except FileNotFoundError:
            continue  # Deleted while we looked.
        if stat.S_ISREG(status.st_mode):
            total += status.st_size
    return total
