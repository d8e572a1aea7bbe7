"""A lock on the files of a capture while they are read, so that they are not removed.

The lock ends with its process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

RECORD = "capture.json"
"""An agent's record of a capture, in each folder on its node."""
MARK = ".perfd-capture"
"""In each shared folder that perfd created: other folders are neither counted nor ever removed."""


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Keep the files of a capture while this lasts; without effect on file systems without locks."""
    with contextlib.ExitStack() as held:
        for name in (RECORD, MARK):
            with contextlib.suppress(OSError):
                descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                held.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


def is_read(folder: Path) -> bool:
    """Whether the files of a capture are being read."""
    return any(_is_locked(folder / name) for name in (RECORD, MARK))


def _is_locked(path: Path) -> bool:
    try:
        # NFS requires a writable file for an exclusive lock.
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
