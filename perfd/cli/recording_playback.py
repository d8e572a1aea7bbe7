"""Plays a recording for a command that shows only what comes of it."""

from __future__ import annotations

from pathlib import Path

from perfd.cli.status_line import StatusLine
from perfd.formatting import percent
from perfd.session.replay_session import ReplayOptions, ReplayProgress, ReplayResult, replay


def play(recording: Path) -> ReplayResult:
    """Play it as fast as possible; how far it is stands on standard error, if that is a terminal.

    Raises as `replay`.
    """
    with StatusLine() as line:

        def show(progress: ReplayProgress) -> None:
            done = progress.played_s / progress.total_s if progress.total_s else 1.0
            line.show(f"Reading the recording: {percent(done, 0)}")

        return replay(ReplayOptions(recording=recording), on_progress=show)
