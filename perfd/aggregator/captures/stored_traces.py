"""Traces of captures in object storage, for their reports."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfd.capture.node import TRACE_SUFFIXES
from perfd.capture.policy.policy_events import Capture, StoredFile
from perfd.errors import CaptureError, StorageError
from perfd.formatting import data_size
from perfd.model import CaptureState
from perfd.net import ObjectStorage

_ROOM_BYTES = 1 << 30
"""Of the disk of temporary files, left to others. Chosen, not measured."""


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
