"""Finds the plugin's segments, and removes those that killed processes left behind."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from perfd_collectors.nccl.rings import MAGIC

FILE_PREFIX = "perfd-nccl-"
_BEING_MADE_S = 60.0
"""How long a file without content may be one that a process is about to lock and fill."""


def find_segments(directory: Path) -> list[Path]:
    """The segments in a directory, live or left over, by name. Anybody may put other things there."""
    return sorted(path for path, _ in _files(directory))


def sweep(directory: Path, now_unix_s: float) -> list[Path]:
    """Remove the segments of processes that are gone, and return their paths."""
    removed = []
    for path, status in _files(directory):
        if _left_over(path, now_unix_s - status.st_mtime):
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def _files(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    try:
        paths = [path for path in directory.iterdir() if path.name.startswith(FILE_PREFIX)]
    except OSError:
        return
    for path in paths:
        try:
            status = path.lstat()
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            yield path, status


def _left_over(path: Path, age_s: float) -> bool:
    """Whether the process that made it is gone: it held a lock on the file for as long as it lived."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        # Gone by now, or not ours to judge: the owner may well be alive.
        return False
    try:
        if os.pread(descriptor, len(MAGIC), 0) != MAGIC and age_s < _BEING_MADE_S:
            # A lock of ours, however short, could get in the way of the one that it is about to take.
            return False
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return False
        raise
    else:
        return True
    finally:
        os.close(descriptor)
