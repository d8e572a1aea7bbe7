"""A session's results on disk: the summary as JSON and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from perfd.analysis.diagnosis import JobSummary, to_json
from perfd.trace.readers.trace_files import SUMMARY_JSON

SUMMARY_TEXT = "summary.md"


def summary_json(summaries: Sequence[JobSummary]) -> bytes:
    """The object of schema perfd.summary/2, on one line."""
    return msgspec.json.encode(to_json(summaries)) + b"\n"


def save_results(directory: Path, summaries: Sequence[JobSummary], text: str) -> None:
    """Write both files, each as a whole or not at all; raises `OSError` if the disk refuses them."""
    document = msgspec.json.format(summary_json(summaries), indent=1)
    _write(directory / SUMMARY_JSON, document + b"\n")
    _write(directory / SUMMARY_TEXT, text.encode())


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError:
        # Nor does the part stay on a disk that is full.
        part.unlink(missing_ok=True)
        raise
