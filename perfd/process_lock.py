"""A lock file that keeps other processes out, with its holder's process id in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

_ID_BYTES = 32
"""More than a process id has."""


class HeldElsewhereError(Exception):
    """Another process has the lock; `holder` is its id, or `unknown`."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"process {holder} holds the lock")
        self.holder = holder


class ProcessLock:
    """An exclusive lock, from its construction until `close` or the end of the process.

    Raises `HeldElsewhereError` if another process has it, and `OSError` if the file cannot be opened. Some
    network file systems have no locks: that raises `OSError` if the lock is `required`; else it is `missing`.
    """

    def __init__(self, path: Path, *, required: bool = True) -> None:
        self.missing: OSError | None = None
        """Why there is no lock, or None."""
        self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._fd, _ID_BYTES, 0).decode("ascii", "replace").strip() or "unknown"
            self.close()
            raise HeldElsewhereError(holder) from error
        except OSError as error:
            if required:
                self.close()
                raise
            self.missing = error
        # The number is for people: a full disk may leave it out.
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Release the lock; may be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
