"""Shares captured files beyond the node: the interface, and copies to a shared folder.

A cluster's file system can hang, and a thread that waits for it cannot be ended. Copies are therefore made,
and old ones removed, in a thread that may be abandoned, and while one hangs no other is started.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from perfd.capture.node.retention import FolderWatch
from perfd.capture.node.shared_folder import SharedFolder
from perfd.errors import CaptureError
from perfd.model import CaptureFile, CaptureRequest

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
"""Between looks at whether a copy has ended, so that a cancellation is noticed soon."""


class Sharing(ABC):
    """Shares the captures of one node. Thread-safe."""

    @abstractmethod
    def share(
        self,
        request: CaptureRequest,
        ranks: Sequence[int],
        files: Sequence[CaptureFile],
        given_up: Callable[[], bool],
    ) -> tuple[Sequence[CaptureFile], str]:
        """Share the files of an outcome; returns all files that there are, and why some are not shared.

        It returns soon after `given_up` holds.
        """

    def start(self) -> None:  # noqa: B027  (most ways need nothing of this)
        """Continue what an earlier agent left."""

    def stop(self) -> None:  # noqa: B027
        """Stop soon. May be called twice, and without `start`."""

    def needs(self, _capture_id: str) -> bool:
        """Whether the files of a capture must stay on the node."""
        return False

    def remove_old(self, _monotonic_s: float) -> None:  # noqa: B027
        """Start removing expired captures of all nodes; does not wait."""


class FolderSharing(Sharing):
    """Copies captures to a shared folder, one at a time. Thread-safe."""

    def __init__(self, folder: SharedFolder, *, timeout_s: float, watch: FolderWatch | None = None) -> None:
        """Without `watch` captures stay until newer ones need their space."""
        self._folder = folder
        self._timeout_s = timeout_s
        self._watch = watch
        self._copying: _Copying | None = None
        self._removing: threading.Thread | None = None
        self._turn = threading.Lock()

    def share(
        self,
        request: CaptureRequest,
        _ranks: Sequence[int],
        files: Sequence[CaptureFile],
        given_up: Callable[[], bool],
    ) -> tuple[Sequence[CaptureFile], str]:
        copies, why = self.copy(request.capture_id, files, given_up)
        return [*files, *copies], why

    def copy(
        self, capture_id: str, files: Sequence[CaptureFile], given_up: Callable[[], bool]
    ) -> tuple[Sequence[CaptureFile], str]:
        """Copy a capture's files; returns the copies, and why some are missing.

        It returns when everything is copied, when the time is over, and soon after `given_up` holds.
        """
        with self._turn:
            return self._copy(capture_id, files, given_up)

    def _copy(
        self, capture_id: str, files: Sequence[CaptureFile], given_up: Callable[[], bool]
    ) -> tuple[Sequence[CaptureFile], str]:
        earlier = self._copying
        if earlier is not None and earlier.is_alive():
            return (), f"Not shared: {self._folder.directory} still hangs since capture {earlier.capture_id}."
        copying = self._copying = _Copying(self._folder, capture_id, files, self._removing)
        copying.start()
        # In slices, because a thread cannot wait for another thread and for an event.
        for _ in range(max(1, round(self._timeout_s / _LOOK_EVERY_S))):
            copying.join(_LOOK_EVERY_S)
            if given_up() or not copying.is_alive():
                break
        slow = f"{self._folder.directory} took longer than capture.share_timeout_s, {self._timeout_s:g} s."
        return copying.leave("it was interrupted." if given_up() else slow)

    def remove_old(self, monotonic_s: float) -> None:
        if not self._turn.acquire(blocking=False):
            return
        try:
            self._begin_to_remove(monotonic_s)
        finally:
            self._turn.release()

    def _begin_to_remove(self, monotonic_s: float) -> None:
        busy = any(thread is not None and thread.is_alive() for thread in (self._copying, self._removing))
        if self._watch is not None and not busy:
            self._removing = threading.Thread(
                target=self._remove_old, args=(self._watch, monotonic_s), name="perfd-share", daemon=True
            )
            self._removing.start()

    def _remove_old(self, watch: FolderWatch, monotonic_s: float) -> None:
        try:
            self._folder.remove_old(watch, monotonic_s)
        except OSError as error:
            log.warning("Old captures cannot be removed.", extra={"reason": str(error)})


class _Copying(threading.Thread):
    """The copies of one capture. Nothing is added to them after `leave`, not even by a thread that hung."""

    def __init__(
        self,
        folder: SharedFolder,
        capture_id: str,
        files: Sequence[CaptureFile],
        after: threading.Thread | None,
    ) -> None:
        """It begins when the thread `after` has ended."""
        super().__init__(name="perfd-share", daemon=True)
        self._after = after
        self.capture_id = capture_id
        self._folder = folder
        self._sources = [Path(file.path) for file in files]
        self._lock = threading.Lock()
        self._left = False
        self._complete = False
        self._copies: list[CaptureFile] = []
        self._problems: list[str] = []

    def run(self) -> None:
        if self._after is not None:
            self._after.join()
        for source in self._sources:
            if self._left:
                return
            self._copy(source)
        with self._lock:
            self._complete = True

    def leave(self, why: str) -> tuple[Sequence[CaptureFile], str]:
        """The copies so far; `why` is the reason if they are incomplete."""
        with self._lock:
            self._left = True
            problems = self._problems if self._complete else [*self._problems, f"Not all is shared: {why}"]
            return tuple(self._copies), " ".join(dict.fromkeys(problems))

    def _copy(self, source: Path) -> None:
        try:
            found = self._folder.find(self.capture_id, source)
            copy = found or self._folder.put(self.capture_id, source)
            if copy is not None and not self._keep(copy) and found is None:
                Path(copy.path).unlink()
        except CaptureError as error:
            self._note(f"Not shared: {error}")
        except OSError as error:
            self._note(f"Not shared: {self._folder.directory}: {error.strerror or error}.")

    def _keep(self, copy: CaptureFile) -> bool:
        """Add a copy, unless the capture no longer waits for it."""
        with self._lock:
            if not self._left:
                self._copies.append(copy)
            return not self._left

    def _note(self, problem: str) -> None:
        with self._lock:
            self._problems.append(problem)
