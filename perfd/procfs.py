"""Lets psutil read another /proc: in a container, the node's is mounted elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_LOCK = threading.Lock()


@contextmanager
def rooted(proc: Path) -> Iterator[None]:
    """Context in which psutil reads `proc`; one thread at a time, because psutil has the path in a global."""
    with _LOCK:
        before = psutil.PROCFS_PATH
        psutil.PROCFS_PATH = str(proc)
        try:
            yield
        finally:
            psutil.PROCFS_PATH = before
