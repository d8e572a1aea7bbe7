"""Calls a function of perfd in a process that can access only a few files: the caller, and that process.

Files that a job wrote are parsed there, so that an exploit of the parser gets them, but none of our rights.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from perfd.errors import PerfdError, SandboxError
from perfd.sandbox.file_confinement import confine_to_files

log = logging.getLogger(__name__)

_PROCESS = (sys.executable, "-P", "-m", "perfd.sandbox.confined_call")
_PR_SET_PDEATHSIG = 1
"""prctl(2): the process ends with its parent."""
_FIRST_VICTIM = "1000"
_REFUSED, _UNEXPECTED = 3, 4
"""Exit codes if standard output has the function's reason, or the name of another exception."""
_BEFORE_RESULT = b"\0"
"""Separates it from warnings of Python and its libraries."""
_MOST_BYTES = 1 << 20
"""Of a result: a process that was taken over must not fill the caller's memory."""
_MOST_CHARS = 1000
"""Of a reason."""


class ConfinedCallError(SandboxError):
    """The call failed, and not with a sentence of the function; the message completes one, after a colon."""


def confined_call(
    function: str,
    read: Sequence[Path],
    write: Sequence[Path] = (),
    options: Sequence[float | str | None] = (),
    *,
    within_s: float | None = None,
) -> bytes:
    """The result of `MODULE:FUNCTION` as JSON, called with these files (absolute paths) and options.

    The process may only read the files in `read` and write those in `write`. Raises `SandboxError` with the
    sentence of a `PerfdError` that the function raised, or `ConfinedCallError`.
    """
    files = {"read": list(map(str, read)), "write": list(map(str, write)), "options": list(options)}
    try:
        process = subprocess.Popen(
            [*_PROCESS, function, json.dumps(files)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Signals to the agent's process group must not interrupt it.
            start_new_session=True,
        )
    except OSError as error:
        raise ConfinedCallError(f"its process did not start: {error.strerror}.") from error
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(within_s or 0.0, end)
    with process:
        if within_s is not None:
            timer.start()
        try:
            output = process.stdout.read(_MOST_BYTES + 1) if process.stdout else b""
            if len(output) > _MOST_BYTES:
                process.kill()
            code = process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            timer.cancel()
    result = output.rpartition(_BEFORE_RESULT)[2]
    if code == 0:
        return result
    text = result.decode(errors="replace")[-_MOST_CHARS:]
    if code == _REFUSED:
        raise SandboxError(text)
    raise _failure(function, code, text, within_s if late.is_set() else None)


def _failure(function: str, code: int, text: str, limit_s: float | None) -> ConfinedCallError:
    if limit_s is not None:
        return ConfinedCallError(f"it took longer than {limit_s:g} s.")
    if code == _UNEXPECTED:
        return ConfinedCallError(f"unexpected content ({text}).")
    if code < 0:
        return ConfinedCallError(f"signal {-code} ended the process; is there enough memory?")
    log.error("A confined process failed.", extra={"function": function, "output": text})
    return ConfinedCallError(f"its process ended with {code}; the log has the details.")


def main() -> int:
    """Print the result and return 0, or print the reason and return another exit code."""
    # End with the caller, since then the result has no use.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_VICTIM, encoding="ascii")
    module, _, name = sys.argv[1].partition(":")
    function = getattr(importlib.import_module(module), name)
    files = json.loads(sys.argv[2])
    read, write = ([Path(path) for path in files[key]] for key in ("read", "write"))
    try:
        confine_to_files(read, write, temporary=False)
        result = function(*read, *write, *files["options"])
    except PerfdError as error:
        return _end(_REFUSED, str(error).encode(errors="replace"))
    except Exception as error:  # noqa: BLE001  (the boundary between two processes)
        # Its text may be content of the file.
        return _end(_UNEXPECTED, type(error).__name__.encode())
    return _end(0, msgspec.json.encode(result))


def _end(code: int, result: bytes) -> int:
    sys.stdout.buffer.write(_BEFORE_RESULT + result)
    return code


if __name__ == "__main__":
    sys.exit(main())
