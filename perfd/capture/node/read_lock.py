"""Says that the files of a capture are being read, so that nobody removes them meanwhile.

The lock ends with the process that has it, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

RECORD = "capture.json"
"""What an agent knows of a capture, in each folder on its node."""
MARK = ".perfd-capture"
"""In each folder that perfd made where others read: others' are neither counted nor ever removed."""


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Keep the files of a capture as long as this lasts; not where its file system has no locks."""
    with contextlib.ExitStack() as held:
        for name in (RECORD, MARK):
            with contextlib.suppress(OSError):
                descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                held.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


def is_read(folder: Path) -> bool:
    """Whether somebody reads the files of a capture now."""
    return any(_is_locked(folder / name) for name in (RECORD, MARK))


def _is_locked(path: Path) -> bool:
    try:
        # NFS wants a file that can be written for an exclusive lock.
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
