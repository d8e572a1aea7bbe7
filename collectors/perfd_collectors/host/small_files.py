"""Reads small files of /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path

_CHUNK_BYTES = 64 * 1024
"""Read at a time; larger than almost all of these files."""
_MAX_DIGITS = 20
"""No 64-bit counter has more."""


def read_bytes(path: str | Path) -> bytes | None:
    """The file's content; None when it is missing or unreadable.

    Unbuffered, because a buffer costs more than the read itself.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = b""
        # The kernel returns some files one page at a time, so only an empty read is the end.
        while more := os.read(fd, _CHUNK_BYTES):
            content += more
    except OSError:
        return None
    finally:
        os.close(fd)
    return content


def read_count(path: str | Path) -> float | None:
    """The number in a file; None when it has none."""
    text = (read_bytes(path) or b"").strip()
    return float(text) if text.isdigit() and len(text) <= _MAX_DIGITS else None


def names_in(path: Path) -> list[str]:
    """The sorted entries of a folder; empty when it is missing."""
    try:
        return sorted(os.listdir(path))  # noqa: PTH208  (names are all that is needed)
    except OSError:
        return []
