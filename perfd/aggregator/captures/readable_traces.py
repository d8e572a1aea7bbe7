"""Captures without a report, and their traces: what this machine can read, and what object storage has."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from perfd.aggregator.captures.capture_message_checks import is_folder_of
from perfd.capture.node import TRACE_SUFFIXES
from perfd.capture.policy.capture_record import Capture, StoredFile
from perfd.errors import CaptureError, StorageError
from perfd.formatting import data_size
from perfd.model import CaptureFile, CaptureState
from perfd.net import ObjectStorage

_ROOM_BYTES = 1 << 30
"""Of the disk of temporary files, left to others. Chosen, not measured."""


def lacks_report(capture: Capture, since_unix_s: float) -> bool:
    """Whether the report of a capture that ended since then, or its file for Perfetto, was not made."""
    report = capture.report
    incomplete = report is None or (report.path is not None and report.perfetto_path is None)
    return incomplete and capture.ended_unix_s is not None and capture.ended_unix_s >= since_unix_s


def has_traces(capture: Capture) -> bool:
    """Whether a capture left a trace, on whatever machine."""
    return any(_is_trace(file.path) for file in _files(capture))


def readable_traces(capture: Capture) -> Sequence[Path]:
    """The traces of one folder of a capture that this process can read: where most ranks are together.

    Paths from agents are not trusted: a folder without the capture's name is skipped, and so is anything
    that is not a plain file.
    """
    folders: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(Path(file.path) for file in _files(capture)):
        if is_folder_of(path.parent, capture.capture_id) and _is_trace(path.name) and _is_readable(path):
            folders.setdefault(path.parent, []).append(path)
    return max(folders.values(), key=len, default=())


def _files(capture: Capture) -> Iterator[CaptureFile]:
    """The files still present, except those of ranks whose capture is known to have no GPU data."""
    for who in capture.participants:
        if who.state is not CaptureState.EMPTY:
            yield from who.files_there


def _is_trace(path: str) -> bool:
    return path.endswith(TRACE_SUFFIXES)


def _is_readable(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode) and os.access(path, os.R_OK)
    except OSError:
        return False


def stored_traces(capture: Capture, storage: ObjectStorage) -> Mapping[str, StoredFile]:
    """The traces of a capture in `storage`, by key; none as long as one of them is not there yet."""
    found: dict[str, StoredFile] = {}
    for who in capture.participants:
        if who.state is CaptureState.EMPTY:
            continue
        for file in who.files:
            if not (file.upload and file.path.endswith(TRACE_SUFFIXES)):
                continue
            stored = who.stored.get(file.path)
            key = storage.key_of(stored.url) if stored else None
            if stored is None or key is None:
                return {}
            found[key] = stored
    return found


def fetch(
    traces: Mapping[str, StoredFile], storage: ObjectStorage, folder: Path, max_bytes: int
) -> Sequence[Path]:
    """Copy traces into `folder`; returns the copies.

    Raises `StorageError`, also if they would fill the disk, or `CaptureError` if they are too large, or are
    not what their nodes uploaded.
    """
    size_bytes = sum(stored.size_bytes for stored in traces.values())
    if size_bytes > max_bytes:
        raise CaptureError(
            f"The traces take {data_size(size_bytes)}, more than object_storage.report_max_bytes "
            f"({data_size(max_bytes)}): no report is made."
        )
    free_bytes = shutil.disk_usage(folder).free
    if size_bytes + _ROOM_BYTES > free_bytes:
        raise StorageError(
            f"The traces take {data_size(size_bytes)}, and {folder.parent} has only {data_size(free_bytes)} "
            "left: free some space, or set TMPDIR."
        )
    copies: list[Path] = []
    for key, stored in traces.items():
        *_, node, name = key.split("/")
        # The ranks of all nodes are in one folder.
        copy = folder / f"{node.removeprefix('node=')}-{name}"
        storage.fetch(key, copy, stored.size_bytes)
        with copy.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if digest != stored.sha256:
            raise CaptureError(
                f"{storage.url_of(key)} has changed since its node uploaded it: no report is made."
            )
        copies.append(copy)
    return copies
