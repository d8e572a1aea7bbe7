"""Processes that poll as libkineto does, for tests without PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import msgspec


class Habits(msgspec.Struct, frozen=True, kw_only=True):
    """How a process behaves; as it comes, it traces what it is told."""

    socket_directory: str | None = None
    """`KINETO_IPC_SOCKET_DIR`; None for abstract sockets."""
    poll_s: float = 0.1
    """libkineto polls every 5 s."""
    busy: bool = False
    """Its profiler is used by somebody else."""
    gpu_work: bool = True
    writes: bool = True
    """Whether a trace reaches the disk."""
    cut_short: bool = False
    dies: bool = False
    """It ends when it is told to trace."""
    links_to: str | None = None
    """It leaves a link instead of a file."""


def start(habits: Habits, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a process with these habits; returns when it is about to poll. The caller ends it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "perfd.testing.kineto_stand_in", msgspec.json.encode(habits).decode()],
        env={**os.environ, "KINETO_USE_DAEMON": "1", **(environment or {})},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    if process.stdout is not None:
        process.stdout.readline()
    return process
