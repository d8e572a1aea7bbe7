"""Finds the plugin's segments, and removes those left behind by dead processes."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from perfd_collectors.nccl.segments.segment import MAGIC

FILE_PREFIX = "perfd-nccl-"
_MAX_CREATION_S = 60.0
"""For how long an empty file may belong to a process that is about to lock and fill it. Far above the
milliseconds that this takes, because removing a live segment would lose a rank."""


def find_segments(directory: Path) -> list[Path]:
    """Paths of the segments in a directory, live or left over, sorted. May include other users' files."""
    return [directory / name for name in segment_names(directory)]


def segment_names(directory: Path) -> list[str]:
    """Sorted file names of the segments in a directory; `Path` objects would cost too much for thousands."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if _may_be_one(entry))
    except OSError:
        return []


def remove_left_over(segments: Iterable[Path], now_unix_s: float) -> list[Path]:
    """Remove the segments of dead processes; returns their paths."""
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
    """Whether the process that created the segment is dead: it holds a lock on the file while it lives."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        # Removed meanwhile, or another user's: its owner may be alive.
        return False
    try:
        age_s = now_unix_s - os.fstat(descriptor).st_mtime
        if os.pread(descriptor, len(MAGIC), 0) != MAGIC and age_s < _MAX_CREATION_S:
            # Even a brief lock of ours could make the process fail to take its own.
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
