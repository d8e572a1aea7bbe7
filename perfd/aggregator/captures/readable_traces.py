"""Which captures lack a report, and which of their traces this machine can read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfd.aggregator.captures.capture_senders import is_folder_of
from perfd.capture.node import TRACE_SUFFIXES
from perfd.capture.policy.policy_events import Capture
from perfd.model import CaptureFile, CaptureState


def lacks_report(capture: Capture, since_unix_s: float) -> bool:
    """Whether the report of a capture that ended since then, or its file for Perfetto, was not made."""
    report = capture.report
    incomplete = report is None or (report.path is not None and report.perfetto_path is None)
    return incomplete and capture.ended_unix_s is not None and capture.ended_unix_s >= since_unix_s


def has_traces(capture: Capture) -> bool:
    """Whether a capture left a trace, on whatever machine."""
    return any(_is_trace(file.path) for file in _files(capture))


def readable_traces(capture: Capture) -> Sequence[Path]:
    """The traces of one folder of a capture that this process can read: where most ranks are together.

    Paths from agents are not trusted: a folder without the capture's name is skipped, and so is anything
    that is not a plain file.
    """
    folders: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(Path(file.path) for file in _files(capture)):
        if is_folder_of(path.parent, capture.capture_id) and _is_trace(path.name) and _is_readable(path):
            folders.setdefault(path.parent, []).append(path)
    return max(folders.values(), key=len, default=())


def _files(capture: Capture) -> Iterator[CaptureFile]:
    """The files still present, except those of ranks whose capture is known to have no GPU data."""
    for who in capture.participants:
        if who.state is not CaptureState.EMPTY:
            yield from who.files_there


def _is_trace(path: str) -> bool:
    return path.endswith(TRACE_SUFFIXES)


def _is_readable(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode) and os.access(path, os.R_OK)
    except OSError:
        return False
