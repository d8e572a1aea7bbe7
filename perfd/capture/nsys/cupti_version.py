"""The CUPTI version of an nsys, and the one that is known to crash jobs.

CUDA 13.0's first CUPTI can crash in `cuptiActivityFlushAll`, which nsys calls some seconds after a collection
began. (Source: NVIDIA, CUPTI's release notes, "Updates in CUDA Toolkit 13.0 Update 1"; seen: ADR 16.)
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CRASHES = 130000
"""That CUPTI's version; Update 1 has 130001."""
LIBRARY = "libcupti.so.13.0"
"""Its file, next to nsys, which has one per CUDA version of the driver."""
_ASK = """
import ctypes, sys
version = ctypes.c_uint32()
if ctypes.CDLL(sys.argv[1]).cuptiGetVersion(ctypes.byref(version)) == 0:
    print(version.value)
"""
_PATIENCE_S = 10.0
"""For `nsys --version`, which reads its libraries from a slow disk at first."""


def version_of(library: Path) -> int | None:
    """A CUPTI's version, such as 130001; None without one, or if it cannot be loaded.

    A separate process queries it, so that a profiler's library is never loaded in this one. Needs no GPU.
    """
    if not library.is_file():
        return None
    command = [sys.executable, "-I", "-S", "-c", _ASK, str(library)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return int(done.stdout) if done.stdout.strip().isdigit() else None
