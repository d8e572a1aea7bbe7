"""Copies of a capture's files that may leave the node: harmless content, in a new private file."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from perfd.capture.redact.redaction_process import EXIT_REASON
from perfd.errors import CaptureError

log = logging.getLogger(__name__)

_PROCESS = (sys.executable, "-P", "-m", "perfd.capture.redact.redaction_process")
_MOST_CHARS = 1000
"""Longest error message that is passed on."""


def redacted_copy(source: Path, target: Path) -> None:
    """Write a copy that may leave the node, mode 0600; the original is unchanged.

    A process that can read no other files writes it. Raises `CaptureError` and leaves no file if that fails.
    """
    if not source.is_file():
        raise CaptureError(f"No such file: {source}.")
    _write(target, lambda: _redact(source, target))


def whole_copy(source: Path, target: Path) -> None:
    """Write a copy with all secrets in it, mode 0600; raises and leaves nothing, like `redacted_copy`."""
    _write(target, lambda: shutil.copyfile(source, target))


def _redact(source: Path, target: Path) -> None:
    command = [*_PROCESS, str(source.absolute()), str(target.absolute())]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
            # Signals to the agent's process group must not interrupt the copy.
            start_new_session=True,
        )
    except OSError as error:
        raise CaptureError(f"{source} cannot be redacted: {error.strerror}.") from error
    if done.returncode == EXIT_REASON:
        raise CaptureError(done.stderr.decode(errors="replace")[-_MOST_CHARS:])
    if done.returncode < 0:
        signal = -done.returncode
        raise CaptureError(
            f"{source} cannot be redacted: signal {signal} ended the process; is there enough memory?"
        )
    if done.returncode != 0:
        log.error("A redaction failed.", extra={"source": str(source), "stderr": _last_chars(done.stderr)})
        raise CaptureError(
            f"{source} cannot be redacted: its process ended with {done.returncode}; "
            "the log of the agent has the details."
        )


def _last_chars(printed: bytes) -> str:
    return printed.decode(errors="replace")[-_MOST_CHARS:]


def _write(target: Path, write: Callable[[], object]) -> None:
    """A new private file to write; removed if that fails."""
    try:
        target.touch(mode=0o600, exist_ok=False)
    except OSError as error:
        raise CaptureError(f"Cannot create {target}: {error.strerror}.") from error
    try:
        write()
    except BaseException:
        target.unlink()
        raise
