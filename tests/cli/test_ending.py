"""Signals end a command wherever its main thread is."""

from __future__ import annotations

import subprocess
import sys

import pytest

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


# The kernel may give a signal to any thread; the main thread waits, so that Python runs no handler in it.
GIVEN_TO_ANOTHER_THREAD = """
import signal, threading
from perfd.cli.ending import set_by_signals

told = set_by_signals(signal.SIGTERM, signal.SIGINT)

def other():
    while not told._cond._waiters:
        pass
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    threading.Event().wait()

threading.Thread(target=other, daemon=True).start()
told.wait()
print("ended")
"""


@pytest.mark.parametrize("script", [INSIDE_THE_LOCK, GIVEN_TO_ANOTHER_THREAD], ids=["the lock", "a thread"])
def test_a_signal_ends_the_wait_wherever_it_comes(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=50
    )

    assert (done.stdout, done.stderr) == ("ended\n", "")
