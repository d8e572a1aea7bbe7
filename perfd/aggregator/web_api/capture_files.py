"""The analyzed files of captures: where they are, and what they hold."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Protocol

from perfd.aggregator.captures import is_folder_of

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Of a file that is served: it is read into memory."""
_OBJECT = "s3://"


class CaptureSource(Protocol):
    """Where captures are. Every method may be called from any thread."""

    def captures(self) -> list[dict[str, Any]]:
        """Captures, oldest first."""

    def stored_file(self, url: str, max_bytes: int) -> bytes:
        """A file of a capture in object storage; raises `StorageError`."""


def url_of(capture: Mapping[str, Any], name: str) -> str | None:
    """Where a file of a report is in object storage; None if the report is not there."""
    path = capture["report"]["path"] if capture.get("report") else None
    return None if not path or not path.startswith(_OBJECT) else f"{path.rpartition('/')[0]}/{name}"


def folders_of(capture: Mapping[str, Any]) -> Sequence[PurePath]:
    """Where agents say that a capture lies; a folder that is not called like the capture is not believed."""
    files = [PurePath(file["path"]) for who in capture["ranks"] for file in who["files"]]
    folders = dict.fromkeys(file.parent for file in files)
    return [folder for folder in folders if is_folder_of(folder, capture["id"])]


def is_file(path: PurePath) -> bool:
    """Whether `perfd capture show ID --analyze` can have written it; most captures are on other machines."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE_BYTES


def read_file(path: PurePath) -> bytes | None:
    """What it has; None when it cannot be read, or was made a link or a pipe meanwhile."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_FILE_BYTES)
    except OSError:
        return None
    finally:
        os.close(descriptor)
