"""Plays a recording for a command that shows only what comes of it."""

from __future__ import annotations

import sys
from pathlib import Path

from perfd.formatting import percent
from perfd.session.replay_session import ReplayOptions, ReplayProgress, ReplayResult, replay

_CLEAR_LINE = "\r\x1b[K"


def play(recording: Path) -> ReplayResult:
    """Play it as fast as possible; how far it is stands on standard error, if that is a terminal.

    Raises as `replay`.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        return replay(ReplayOptions(recording=recording))
    try:
        return replay(ReplayOptions(recording=recording), on_progress=_show)
    finally:
        sys.stderr.write(_CLEAR_LINE)
        sys.stderr.flush()


def _show(progress: ReplayProgress) -> None:
    done = progress.played_s / progress.total_s if progress.total_s else 1.0
    sys.stderr.write(f"\rReading the recording: {percent(done, 0)}")
    sys.stderr.flush()
