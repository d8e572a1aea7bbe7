"""Reads small files of /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path

_CHUNK_BYTES = 64 * 1024


def read_bytes(path: str | Path) -> bytes | None:
    """The file's content, or None when there is none or the kernel refuses to give it.

    Without a buffer in between, which costs more than the read itself.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = b""
        # The kernel gives a page at a time of some files, so only an empty read is the end.
        while more := os.read(fd, _CHUNK_BYTES):
            content += more
    except OSError:
        return None
    finally:
        os.close(fd)
    return content


def read_count(path: str | Path) -> float | None:
    """The number in a file that holds one, or None."""
    text = (read_bytes(path) or b"").strip()
    return float(text) if text.isdigit() and len(text) <= 20 else None


def names_in(path: Path) -> list[str]:
    """The entries of a folder in order; empty when it is not there."""
    try:
        return sorted(os.listdir(path))  # noqa: PTH208  (names are all that is needed)
    except OSError:
        return []
