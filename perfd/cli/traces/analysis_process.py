"""Runs `perfd analyze`, which reads traces in a sandbox, for commands that continue with its result."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import IO

from perfd.errors import TraceError

_ANALYZE = (sys.executable, "-P", "-m", "perfd", "analyze", "--json")


def run_analysis(arguments: Sequence[str], output: IO[bytes]) -> None:
    """Write what `perfd analyze --json` prints to `output`; raises `TraceError` with its complaint."""
    done = subprocess.run([*_ANALYZE, *arguments], stdout=output, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise TraceError(
            lines[-1].removeprefix("perfd analyze: ")
            if lines
            else f"The analysis ended with {done.returncode}; is there enough memory?"
        )
