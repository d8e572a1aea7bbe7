"""What disturbs a training process from outside its own loop: processes on its core, copies, freed memory.

Used by `phase_injector.py`, in the job's own process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

_COPIED_BYTES = 64 << 20
_BUSY = "while True: pass"


class CrowdedCore:
    """All threads of this process share one core with busy processes, as a wrong cpuset has it."""

    def __init__(self) -> None:
        self._busy: list[subprocess.Popen[bytes]] = []
        self._allowed: set[int] = set()

    def crowd(self, busy_processes: int) -> None:
        """Start so many of them, and keep to their core."""
        self._allowed = os.sched_getaffinity(0)
        core = {sorted(self._allowed)[-1 - os.getpid() % 2]}
        for _ in range(busy_processes):
            process = subprocess.Popen([sys.executable, "-c", _BUSY])
            os.sched_setaffinity(process.pid, core)
            self._busy.append(process)
        _keep_to(core)

    def leave(self) -> None:
        """End them, and use all cores again."""
        for process in self._busy:
            process.kill()
            process.wait()
        if self._busy:
            _keep_to(self._allowed)
        self._busy = []


def _keep_to(cores: set[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(thread.name), cores)


def copy_for(seconds: float, device: torch.device) -> None:
    """Copy memory that is not pinned to the GPU, and wait for it, as a loop that keeps data on the host."""
    until_s = time.perf_counter() + seconds
    held = torch.empty(_COPIED_BYTES, dtype=torch.uint8)
    while time.perf_counter() < until_s:
        held.to(device, copy=True)


def empty_cache() -> None:
    """Give freed memory back, so that what follows allocates it anew."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
