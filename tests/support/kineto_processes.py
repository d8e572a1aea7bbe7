"""Processes that poll as libkineto does, for tests without PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tests.support.kineto_stand_in import Habits

__all__ = ["Habits", "start"]
_STAND_IN = Path(__file__).with_name("kineto_stand_in.py")


def start(habits: Habits, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a process with these habits; returns when it is about to poll. The caller ends it."""
    process = subprocess.Popen(
        [sys.executable, "-P", str(_STAND_IN), msgspec.json.encode(habits).decode()],
        env={**os.environ, "KINETO_USE_DAEMON": "1", **(environment or {})},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    if process.stdout is not None:
        process.stdout.readline()
    return process
