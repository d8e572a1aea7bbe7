"""A command run while a server is watched, as `perfd bench-serving --watch URL --run CMD` does."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence

from perfd.analysis.serving import ObservationWindow
from perfd.cli.serving.serving_sources import ServerSample, ServerWatcher
from perfd.errors import PerfdError
from perfd.session.job import exit_code

_LOOK_EVERY_S = 1.0
"""Between reads of the server's metrics, whose window must have several."""


def watch(server: ServerWatcher, command: Sequence[str], *, quiet: bool) -> tuple[int, ServerSample]:
    """Run a command to its end; its exit code (128 + n if signal n ended it), and what the server said then.

    With `quiet` the command's output goes to standard error. Raises `PerfdError` when the command cannot be
    started, or the server cannot be read at the start or at the end.
    """
    window = ObservationWindow(server.look())
    start_s = time.monotonic()
    try:
        process = subprocess.Popen(command, stdout=sys.stderr if quiet else None)
    except OSError as error:
        raise PerfdError(f"{command[0]} cannot be run: {error.strerror or error}.") from error
    try:
        while True:
            try:
                code = process.wait(_LOOK_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                _look(server, window)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    window.add(server.look())
    measured = window.measured(time.monotonic() - start_s)
    return exit_code(code), ServerSample(source=server.url, measured=measured, info=server.info)


def _look(server: ServerWatcher, window: ObservationWindow) -> None:
    # A server under load may be late once; the ends of the window decide.
    with contextlib.suppress(PerfdError):
        window.add(server.look())
