"""psutil below a /proc of its own: in a container, the node's is mounted elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_LOCK = threading.Lock()


@contextmanager
def rooted(proc: Path) -> Iterator[None]:
    """Within it psutil reads `proc`. One thread at a time: psutil keeps that path in a global."""
    with _LOCK:
        before = psutil.PROCFS_PATH
        psutil.PROCFS_PATH = str(proc)
        try:
            yield
        finally:
            psutil.PROCFS_PATH = before
