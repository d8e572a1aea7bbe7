"""What a user means who names the output of `perfd run`."""

from __future__ import annotations

from pathlib import Path

from perfd.errors import PerfdError, TraceError
from perfd.recording.recording_format import names_recording
from perfd.report.comparison import summary_of_run
from perfd.trace.readers.trace_files import SUMMARY_JSON, with_folders_opened


def summary_or_path(path: Path) -> Path:
    """The summary in a folder that `perfd run` left; the path itself when it is anything else.

    Raises `PerfdError` with the newest of these folders when `path` is the folder above them.
    """
    found = summary_of_run(path)
    if found != path or not (runs := list(path.glob(f"*/{SUMMARY_JSON}"))) or names_recording(str(path)):
        return found
    try:
        with_folders_opened([path])
    except TraceError:
        newest = max(runs, key=lambda run: run.stat().st_mtime_ns).parent
        raise PerfdError(
            f"{path} has the folders of several runs: name one, such as {newest}, the newest."
            if len(runs) > 1
            else f"{path} has the folder of one run: name that, {newest}."
        ) from None
    return path
