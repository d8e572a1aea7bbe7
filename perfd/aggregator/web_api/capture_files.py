"""The analyzed files of captures: where they are, what they hold, and the kernels in them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import Any, Protocol

import msgspec

from perfd.aggregator.captures import DOCUMENT_NAME, is_folder_of
from perfd.errors import PerfdError
from perfd.report.comparison import MeasuredRun, measures_of_trace

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Of a file that is served: it is read into memory."""
_OBJECT = "s3://"

Document = dict[str, Any]
"""Of schema perfd.trace/2."""


class CaptureSource(Protocol):
    """Where captures are. Every method may be called from any thread."""

    def captures(self) -> list[dict[str, Any]]:
        """Captures, oldest first."""

    def stored_file(self, url: str, max_bytes: int) -> bytes:
        """A file of a capture in object storage; raises `StorageError`."""


def with_kernels(
    run: MeasuredRun,
    source: CaptureSource,
    job: str,
    documents: Callable[[Mapping[str, Any]], Sequence[Document]] | None = None,
) -> MeasuredRun:
    """The run with the kernels of the newest analyzed capture of `job`, if one can be read.

    `documents` reads those of a capture; by default those in object storage or on this machine.
    """
    read = documents or partial(_documents, source)
    for capture in reversed(source.captures()):
        if capture["job"] != job:
            continue
        try:
            ranks = [rank for one in read(capture) for rank in one.get("ranks", [])]
            traced = measures_of_trace({"ranks": ranks}, capture["id"])
        except (PerfdError, OSError, msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if traced.kernels_s:
            return replace(
                run,
                capture=capture["id"],
                kernels_s=traced.kernels_s,
                kernel_counts=traced.kernel_counts,
            )
    return run


def _documents(source: CaptureSource, capture: Mapping[str, Any]) -> list[Document]:
    """One of each folder: of several nodes each has its ranks."""
    if (url := url_of(capture, DOCUMENT_NAME)) is not None:
        bodies = [source.stored_file(url, MAX_FILE_BYTES)]
    else:
        paths = [folder / DOCUMENT_NAME for folder in folders_of(capture)]
        bodies = [body for path in paths if is_file(path) and (body := read_file(path)) is not None]
    return [msgspec.json.decode(body, type=dict[str, Any]) for body in bodies]


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
