"""Finds the plugin's segments, and removes those that killed processes left behind."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from perfd_collectors.nccl.segments.segment import MAGIC

FILE_PREFIX = "perfd-nccl-"
_BEING_MADE_S = 60.0
"""How long a file without content may be one that a process is about to lock and fill."""


def find_segments(directory: Path) -> list[Path]:
    """The segments in a directory, live or left over, by name. Anybody may put other things there."""
    return [directory / name for name in segment_names(directory)]


def segment_names(directory: Path) -> list[str]:
    """Their names alone, in order: of thousands, paths would cost more than the look."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if _may_be_one(entry))
    except OSError:
        return []


def sweep(segments: Iterable[Path], now_unix_s: float) -> list[Path]:
    """Remove those of processes that are gone, and return their paths."""
    removed = [path for path in segments if _left_over(path, now_unix_s)]
    for path in removed:
        path.unlink(missing_ok=True)
    return removed


def _may_be_one(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.name.startswith(FILE_PREFIX) and entry.is_file(follow_symlinks=False)
    except OSError:
        return False


def _left_over(path: Path, now_unix_s: float) -> bool:
    """Whether the process that made it is gone: it held a lock on the file for as long as it lived."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        # Gone by now, or not ours to judge: the owner may well be alive.
        return False
    try:
        age_s = now_unix_s - os.fstat(descriptor).st_mtime
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
