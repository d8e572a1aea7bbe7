"""Signals end a command wherever its main thread is."""

from __future__ import annotations

import subprocess
import sys

# The process asks for the signal inside the lock of the event that it waits for, where a handler that sets
# the event would wait for itself for ever.
INSIDE_THE_LOCK = """
import os, signal
from perfd.cli.ending import set_by_signals

told = set_by_signals(signal.SIGTERM, signal.SIGINT)
with told._cond:
    os.kill(os.getpid(), signal.SIGTERM)
told.wait()
print("ended")
"""


def test_a_signal_inside_the_lock_of_the_event_ends_the_wait() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INSIDE_THE_LOCK], capture_output=True, text=True, check=True, timeout=50
    )

    assert done.stdout == "ended\n"
