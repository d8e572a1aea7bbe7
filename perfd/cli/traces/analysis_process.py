"""Runs `perfd analyze`, which reads traces in a sandbox, for commands that continue with its result."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import IO

from perfd.cli.status_line import SHOWN_AFTER_S, StatusLine
from perfd.errors import TraceError

_ANALYZE = (sys.executable, "-P", "-m", "perfd", "analyze", "--json")


def run_analysis(arguments: Sequence[str], output: IO[bytes], *, shown_as: str) -> None:
    """Write what `perfd analyze --json` prints to `output`; raises `TraceError` with its complaint.

    When it takes long, a terminal on standard error shows what is analyzed.
    """
    command = [*_ANALYZE, *arguments]
    with StatusLine() as line, subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE) as process:
        try:
            complaint = _complaint(process, line, shown_as)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        lines = complaint.decode(errors="replace").strip().splitlines()
        raise TraceError(
            lines[-1].removeprefix("perfd analyze: ")
            if lines
            else f"The analysis ended with {process.returncode}; is there enough memory?"
        )


def _complaint(process: subprocess.Popen[bytes], line: StatusLine, shown_as: str) -> bytes:
    try:
        return process.communicate(timeout=SHOWN_AFTER_S)[1]
    except subprocess.TimeoutExpired:
        line.show(f"Analyzing {shown_as}")
        return process.communicate()[1]
