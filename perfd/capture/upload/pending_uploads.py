"""A node's pending uploads to object storage, in a file in each capture's folder.

After a kill, the next agent finds them there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from perfd.capture.object_keys import file_key
from perfd.capture.selection import check_capture_id
from perfd.errors import CaptureError
from perfd.model import CaptureFile, CaptureRequest

_LIST = "uploads.json"


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """A file to upload."""

    capture_id: str
    name: str
    """In the capture's folder."""
    key: str


class UploadQueue:
    """The uploads of the captures in a directory. One thread may add while another one removes."""

    def __init__(self, directory: Path, node: str) -> None:
        self._directory = directory
        self._node = node

    def add(self, request: CaptureRequest, ranks: Sequence[int], files: Sequence[CaptureFile]) -> None:
        """Add files of a capture that has ended; raises `CaptureError` or `OSError`."""
        uploads = [
            Upload(
                capture_id=request.capture_id,
                name=Path(file.path).name,
                key=file_key(
                    request.object_folder, request.capture_id, ranks, self._node, Path(file.path).name
                ),
            )
            for file in files
        ]
        if not uploads:
            return
        # A separate list for each outcome of a capture: the other thread may be at an earlier one.
        folder = self._directory / check_capture_id(request.capture_id)
        number = len(list(folder.glob(f"*.{_LIST}")))
        self._write(folder / f"{number}.{_LIST}", uploads)

    def waiting(self) -> Sequence[Upload]:
        """All uploads, those of the oldest capture first."""
        lists = [(path.stat().st_mtime, path) for path in self._directory.glob(f"*/*.{_LIST}")]
        return [upload for _, path in sorted(lists) for upload in _read(path)]

    def has(self, capture_id: str) -> bool:
        """Whether uploads of a capture wait."""
        return any(map(_read, self._folder(capture_id).glob(f"*.{_LIST}")))

    def source(self, upload: Upload) -> Path:
        """The file to upload."""
        return self._folder(upload.capture_id) / upload.name

    def done(self, upload: Upload) -> None:
        """Remove an upload; raises `OSError`."""
        for path in self._folder(upload.capture_id).glob(f"*.{_LIST}"):
            uploads = _read(path)
            if upload in uploads:
                self._write(path, [one for one in uploads if one != upload])

    def _folder(self, capture_id: str) -> Path:
        return self._directory / check_capture_id(capture_id)

    def _write(self, path: Path, uploads: Sequence[Upload]) -> None:
        fresh = path.with_suffix(".new")
        try:
            fresh.touch(mode=0o600)
            with fresh.open("wb") as file:
                file.write(msgspec.json.encode(uploads))
                # A power cut must not leave an empty list: its files would never be uploaded.
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
            # Nor that there is none.
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise


def _read(path: Path) -> Sequence[Upload]:
    """The uploads in a list; none if it is damaged or gone."""
    try:
        uploads = msgspec.json.decode(path.read_bytes(), type=list[Upload])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()
    return [upload for upload in uploads if _is_plain(upload, path)]


def _is_plain(upload: Upload, path: Path) -> bool:
    """Whether an upload is of a file of the folder that its list is in."""
    try:
        return (
            check_capture_id(upload.capture_id) == path.parent.name and Path(upload.name).name == upload.name
        )
    except CaptureError:
        return False
