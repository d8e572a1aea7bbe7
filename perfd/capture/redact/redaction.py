"""Copies of a capture's files that may leave the node: harmless content, by the name of the file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from perfd.capture.redact.redact_json import redact_stacks, redact_trace
from perfd.capture.redact.redact_sqlite import redact_export
from perfd.errors import CaptureError, SandboxError
from perfd.sandbox.confined_call import ConfinedCallError, confined_call

_REDACTIONS: Mapping[str, Callable[[Path, Path], None]] = {
    ".sqlite": redact_export,
    ".stacks.json": redact_stacks,
    ".trace.json": redact_trace,
}


def can_be_redacted(source: Path) -> bool:
    """Whether there is a redaction for files of this name; others must stay on the node."""
    return _redaction(source) is not None


def redact(source: Path, target: Path) -> None:
    """Write a redacted copy into `target`, an existing empty file; raises `CaptureError`."""
    redaction = _redaction(source)
    if redaction is None:
        kinds = ", ".join(_REDACTIONS)
        raise CaptureError(f"{source} cannot be redacted and must not leave the node; {kinds} can.")
    redaction(source, target)


def _redaction(source: Path) -> Callable[[Path, Path], None] | None:
    return next((how for suffix, how in _REDACTIONS.items() if source.name.endswith(suffix)), None)


_REDACT = "perfd.capture.redact.redaction:redact"


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
    try:
        confined_call(_REDACT, [source.absolute()], [target.absolute()])
    except ConfinedCallError as error:
        raise CaptureError(f"{source} cannot be redacted: {error}") from error
    except SandboxError as error:
        raise CaptureError(str(error)) from error


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
