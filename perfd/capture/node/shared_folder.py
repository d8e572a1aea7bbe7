"""Copies of captures in a shared folder, such as on a cluster's file system.

Only copies without the job's environment, arguments and output, and without other processes, are shared.
Files that cannot be rewritten (.nsys-rep, .qdstrm, pickles, servers' traces) stay on their node,
unless the operator configures it. The oldest captures are removed when new ones need their space.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfd.capture.node.capture_storage import free_bytes
from perfd.capture.node.read_lock import MARK, is_read
from perfd.capture.node.retention import FolderWatch, OnRemoved
from perfd.capture.redact import can_be_redacted, redacted_copy, whole_copy
from perfd.capture.selection import check_capture_id, slug
from perfd.errors import CaptureError
from perfd.formatting import data_size
from perfd.model import CaptureFile

_NO_ROOM = "Removed for newer captures (capture.share_max_bytes)."


def _nobody(_capture_id: str, _paths: Sequence[Path], _why: str) -> None:
    """Ignores removals, if there is no history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """A capture in the folder."""

    folder: Path
    made_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFolder:
    """Copies of the captures of all nodes, limited in bytes."""

    directory: Path
    node: str
    """Prefix of each file's name, because the ranks of all nodes share one folder."""
    unredacted: bool = False
    """Whether files that cannot be redacted are shared too, with all their secrets."""
    max_bytes: int | None = None
    min_free_bytes: int = 0
    free: Callable[[Path], int] = free_bytes
    report_removed: OnRemoved = _nobody
    """Called before each removal."""

    def find(self, capture_id: str, source: Path) -> CaptureFile | None:
        """The existing copy of a capture's file."""
        copy = self._place(capture_id, source)
        return CaptureFile(path=str(copy), size_bytes=copy.stat().st_size) if copy.exists() else None

    def put(self, capture_id: str, source: Path) -> CaptureFile | None:
        """Copy a file of a capture there; None for one that must stay on its node.

        Raises `CaptureError` or `OSError` with the reason if there is no copy, and leaves no part of one.
        """
        if not (self.unredacted or can_be_redacted(source)):
            return None
        copy = self._place(capture_id, source)
        self._make(copy.parent)
        self._make_room(source.stat().st_size, copy.parent, source.name)
        # The name appears only with the complete file, even if this process is killed.
        part = copy.with_name(f".{copy.name}.part")
        (redacted_copy if can_be_redacted(source) else whole_copy)(source, part)
        part.replace(copy)
        return CaptureFile(path=str(copy), size_bytes=copy.stat().st_size)

    def remove_old(self, watch: FolderWatch, monotonic_s: float) -> None:
        """Remove the expired captures of all nodes, unless they are being read."""
        captures = {shared.folder.name: shared.folder for shared in self._captures()}
        if not captures:
            return
        for capture_id in watch.look(captures.keys(), monotonic_s):
            self._remove(captures[capture_id], watch.why)

    def _place(self, capture_id: str, source: Path) -> Path:
        return self.directory / check_capture_id(capture_id) / f"{slug(self.node)}-{source.name}"

    def _make(self, folder: Path) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            (folder / MARK).touch(mode=0o600)

    def _make_room(self, size_bytes: int, folder: Path, name: str) -> None:
        """Remove the oldest other captures until there is room for this many bytes; raises if impossible."""
        left_bytes = self.free(self.directory)
        if left_bytes - size_bytes < self.min_free_bytes:
            raise CaptureError(
                f"{name} has {data_size(size_bytes)}; {self.directory} has {data_size(left_bytes)} free, "
                f"of which {data_size(self.min_free_bytes)} must stay free: make room or lower "
                "capture.min_free_bytes."
            )
        if self.max_bytes is None:
            return
        captures = self._captures()
        own_bytes = sum(shared.size_bytes for shared in captures if shared.folder == folder)
        if own_bytes + size_bytes > self.max_bytes:
            raise CaptureError(
                f"{name} has {data_size(size_bytes)}, too much for capture.share_max_bytes "
                f"({data_size(self.max_bytes)})."
            )
        excess_bytes = sum(shared.size_bytes for shared in captures) + size_bytes - self.max_bytes
        for oldest in sorted(captures, key=lambda shared: (shared.made_s, shared.folder.name)):
            if excess_bytes > 0 and oldest.folder != folder and self._remove(oldest.folder, _NO_ROOM):
                excess_bytes -= oldest.size_bytes
        if excess_bytes > 0:
            raise CaptureError(
                f"{name} needs {data_size(size_bytes)}, and older captures in {self.directory} cannot be "
                "removed; "
                f"remove some, or raise capture.share_max_bytes ({data_size(self.max_bytes)})."
            )

    def _remove(self, folder: Path, why: str) -> bool:
        """Remove the files of a capture, the mark last, and its folder if nothing else is in it."""
        if is_read(folder):
            return False
        # Several nodes free space at the same time.
        with contextlib.suppress(OSError):
            files = [file for file, _ in _files(folder) if file.name != MARK]
            self.report_removed(folder.name, files, why)
            for file in files:
                file.unlink(missing_ok=True)
            (folder / MARK).unlink(missing_ok=True)
            folder.rmdir()
        return not (folder / MARK).exists()

    def _captures(self) -> list[_Shared]:
        found: list[_Shared] = []
        for mark in self.directory.glob(f"*/{MARK}"):
            # Another node may remove it meanwhile, and files that we cannot read are not ours to remove.
            with contextlib.suppress(OSError):
                sizes = [status.st_size for _, status in _files(mark.parent)]
                found.append(_Shared(folder=mark.parent, made_s=mark.lstat().st_mtime, size_bytes=sum(sizes)))
        return found


def _files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    entries = [(entry, entry.lstat()) for entry in folder.iterdir()]
    return [(entry, status) for entry, status in entries if stat.S_ISREG(status.st_mode)]
