"""Uploads one captured file after another, in a separate thread."""

from __future__ import annotations

import hashlib
import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from perfd.capture.node import Sharing
from perfd.capture.redact import can_be_redacted, redacted_copy, whole_copy
from perfd.capture.upload.pending_uploads import Upload, UploadQueue
from perfd.clock import Clock
from perfd.errors import CaptureError, PerfdError, StorageError, reason_of
from perfd.model import CaptureFile, CaptureFileUpload, CaptureRequest

log = logging.getLogger(__name__)

_FIRST_WAIT_S = 1.0
"""Before the first retry; it doubles with each failure."""
_LONGEST_WAIT_S = 300.0
"""Between retries: storage that is back is used within it."""
_MOST_DOUBLINGS = 16
"""Bounds the power, which grows past any float during a long outage."""
_STOP_WITHIN_S = 2.0
"""For a block that is being sent at the agent's end; the upload is continued after the next start."""
_BLOCK_BYTES = 1 << 20
"""A block of a file whose checksum is made, so that a large one needs little memory."""


class _Copy(NamedTuple):
    source: tuple[int, int]
    """Its time of change and its size when the copy was made."""
    sha256: str
    size_bytes: int


class Storage(Protocol):
    """Where files go; `put` raises `StorageError` with the reason."""

    def put(self, key: str, file: Path, given_up: Callable[[], bool]) -> None:
        """Store a file; it is there when this returns."""

    def url_of(self, key: str) -> str:
        """The address of a key, without credentials."""


class Uploader(Sharing):
    """Uploads the captures of one node, from `start` to `stop`.

    As with a shared folder, only copies without the job's environment, arguments and output are uploaded,
    unless `unredacted`. `report` gets each file that is stored, and each new reason why one is not; when it
    returns, that is recorded. It may raise `OSError` or `PerfdError`: the file is then uploaded again.
    """

    def __init__(
        self,
        storage: Storage,
        queue: UploadQueue,
        *,
        clock: Clock,
        report: Callable[[CaptureFileUpload], None],
        unredacted: bool = False,
        first_wait_s: float = _FIRST_WAIT_S,
    ) -> None:
        self._storage = storage
        self._queue = queue
        self._clock = clock
        self._report = report
        self._unredacted = unredacted
        self._first_wait_s = first_wait_s
        self._reasons: dict[Upload, str] = {}
        """The reasons that were reported."""
        self._copies: dict[Path, _Copy] = {}
        """Those that this process has made and that are not stored yet."""
        self._stopping = threading.Event()
        self._more = threading.Event()
        self._thread = threading.Thread(target=self._work, name="perfd-upload", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop soon: an upload that runs is interrupted, and begins again with the next agent."""
        self._stopping.set()
        self._more.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_WITHIN_S)

    def share(
        self,
        request: CaptureRequest,
        ranks: Sequence[int],
        files: Sequence[CaptureFile],
        _given_up: Callable[[], bool],
    ) -> tuple[Sequence[CaptureFile], str]:
        chosen = {file.path for file in files if self._unredacted or can_be_redacted(Path(file.path))}
        try:
            self._queue.add(request, ranks, [file for file in files if file.path in chosen])
        except (CaptureError, OSError) as error:
            return files, f"Not uploaded: {reason_of(error).rstrip('.')}."
        self._more.set()
        return [replace(file, upload=file.path in chosen) for file in files], ""

    def needs(self, capture_id: str) -> bool:
        return self._queue.has(capture_id)

    def _work(self) -> None:
        failed_rounds = 0
        while True:
            # In this order: `stop` sets both.
            self._more.clear()
            if self._stopping.is_set():
                return
            if self._round():
                failed_rounds = 0
                self._more.wait()
                continue
            # New captures do not end the wait: they would fail as well.
            ceiling_s = min(_LONGEST_WAIT_S, self._first_wait_s * 2.0 ** min(failed_rounds, _MOST_DOUBLINGS))
            failed_rounds += 1
            self._stopping.wait(ceiling_s * (0.5 + random.random() / 2))  # noqa: S311  (no secret)

    def _round(self) -> bool:
        """Try each upload once; whether none is left to be tried again."""
        try:
            waiting = self._queue.waiting()
        except OSError as error:
            log.warning("Uploads cannot be listed.", extra={"reason": reason_of(error)})
            return False
        complete = True
        for upload in waiting:
            if self._stopping.is_set():
                return False
            complete &= self._try(upload)
        return complete

    def _try(self, upload: Upload) -> bool:
        """Upload a file; whether it need not be tried again."""
        try:
            stored = self._upload(upload)
            self._report(stored)
            self._queue.done(upload)
        except StorageError as error:
            self._failed(upload, f"{error} The file stays on its node, and the agent retries the upload.")
            return False
        except CaptureError as error:
            # It will not be different next time.
            self._failed(upload, f"{error} It stays on its node.")
            self._drop(upload)
        except (OSError, PerfdError) as error:
            self._failed(upload, f"{upload.name} cannot be read: {reason_of(error).rstrip('.')}.")
            return False
        except Exception:
            # Whatever one file is made of, the others have their turn.
            log.exception("An upload failed.", extra={"capture": upload.capture_id})
            self._failed(upload, f"{upload.name} cannot be read; the agent's log has the cause.")
            return False
        self._reasons.pop(upload, None)
        return True

    def _upload(self, upload: Upload) -> CaptureFileUpload:
        source = self._queue.source(upload)
        copy = source.with_name(f".{upload.name}.upload")
        if not source.is_file():
            self._forget(copy)
            raise CaptureError(f"{source} was removed before it was uploaded.")
        try:
            # Redaction takes the node's processor: it is not repeated because storage is away.
            made = self._copies.get(copy)
            if made is None or made.source != _version(source) or not copy.is_file():
                # An agent that was killed may have left it.
                copy.unlink(missing_ok=True)
                version = _version(source)
                (redacted_copy if can_be_redacted(source) else whole_copy)(source, copy)
                made = self._copies[copy] = _Copy(version, *_digest(copy))
            self._storage.put(upload.key, copy, self._stopping.is_set)
        except StorageError:
            if self._stopping.is_set():
                self._forget(copy)
            raise
        except BaseException:
            self._forget(copy)
            raise
        self._forget(copy)
        return CaptureFileUpload(
            capture_id=upload.capture_id,
            path=str(source),
            url=self._storage.url_of(upload.key),
            size_bytes=made.size_bytes,
            sha256=made.sha256,
            time_unix_ns=self._clock.unix_ns(),
        )

    def _forget(self, copy: Path) -> None:
        self._copies.pop(copy, None)
        copy.unlink(missing_ok=True)

    def _failed(self, upload: Upload, reason: str) -> None:
        """Report why a file is not stored, once for each reason, unless the agent is being stopped."""
        if self._stopping.is_set() or self._reasons.get(upload) == reason:
            return
        log.warning(
            "A captured file is not uploaded.", extra={"capture": upload.capture_id, "reason": reason}
        )
        failed = CaptureFileUpload(
            capture_id=upload.capture_id,
            path=str(self._queue.source(upload)),
            reason=reason,
            time_unix_ns=self._clock.unix_ns(),
        )
        try:
            self._report(failed)
            self._reasons[upload] = reason
        except (OSError, PerfdError) as error:
            log.warning("A failed upload cannot be reported.", extra={"reason": reason_of(error)})

    def _drop(self, upload: Upload) -> None:
        self._reasons.pop(upload, None)
        try:
            self._queue.done(upload)
        except OSError as error:
            log.warning("An upload cannot be removed from the list.", extra={"reason": reason_of(error)})


def _version(source: Path) -> tuple[int, int]:
    status = source.stat()
    return status.st_mtime_ns, status.st_size


def _digest(file: Path) -> tuple[str, int]:
    """SHA-256 of a file, and its size."""
    digest, size_bytes = hashlib.sha256(), 0
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK_BYTES):
            digest.update(block)
            size_bytes += len(block)
    return digest.hexdigest(), size_bytes
