"""Runs a command that ends with whoever holds the other end of its standard input, however that ends.

A separate program that imports nothing of perfd: `python -I -S child_guard.py [PATH...] -- COMMAND...`. It
must lead a process group. When its standard input ends, it ends that group and removes the paths. Both run at
the lowest priority.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

_LEAST_URGENT = 19
"""The highest nice value."""
_FIRST_TO_GO = "1000"


def run(command: Sequence[str], paths: Sequence[str]) -> int:
    """Run the command under the guard; its exit code, or its signal as a negative number."""
    # What may not be lowered stays as it is.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _LEAST_URGENT)
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO, encoding="ascii")
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        input_ended = threading.Event()
        holder = threading.Thread(target=_hold, args=(process, paths, input_ended), daemon=True)
        holder.start()
        code = process.wait()
        if input_ended.is_set():
            holder.join()
        return code


def _hold(process: subprocess.Popen[bytes], paths: Sequence[str], input_ended: threading.Event) -> None:
    """End the whole group, this process too, when standard input ends."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    input_ended.set()
    # It first, so that it does not make again what is removed; then all that it started.
    process.kill()
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            Path(path).unlink()
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    end = sys.argv.index("--")
    code = run(sys.argv[end + 1 :], sys.argv[1:end])
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)
