"""Selects the redaction for a file by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from perfd.capture.redact.redact_json import redact_stacks, redact_trace
from perfd.capture.redact.redact_sqlite import redact as redact_export
from perfd.errors import CaptureError

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
