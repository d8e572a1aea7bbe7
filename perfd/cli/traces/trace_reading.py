"""Reads traces for commands, which show on a terminal what is being read."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from perfd.cli.status_line import SHOWN_AFTER_S, StatusLine
from perfd.cli.traces.confined_reading import confinement
from perfd.formatting import data_size
from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.readers.trace_files import ReadProgress, read_traces

LARGE_BYTES = 50_000_000
"""A file of this size is named before it is read, since nothing can be shown meanwhile. JSON of
PyTorch is read at 130 MB/s (2 cores, cached), so that this takes about a second with a disk of 100 MB/s."""
PACKED_RATIO = 10
"""How much smaller gzip makes a trace: databases 3 to 7 times, JSON 20 and more."""


def read(
    args: argparse.Namespace,
    files: Sequence[Path],
    nsys_program: str,
    *,
    written: Path | None = None,
    detailed: bool = False,
    spans: bool = True,
) -> list[RankTrace]:
    """The ranks of all files, read without other rights than to write the folder of `written`.

    What is read stands on standard error, if that is a terminal and reading takes long. Raises as
    `read_traces`.
    """
    start_s = time.monotonic()
    # Shown between files: a second thread would keep the rights that this one gives up.
    with StatusLine() as line:

        def show(progress: ReadProgress) -> None:
            if line.shown or is_shown(progress, time.monotonic() - start_s):
                line.show(in_words(progress))

        return read_traces(
            files,
            nsys_program,
            detailed=detailed,
            spans=spans,
            confine=confinement(args, files, written),
            on_progress=show,
        )


def is_shown(progress: ReadProgress, elapsed_s: float) -> bool:
    """Whether reading takes, or is about to take, long enough to show it."""
    if progress.exporting:
        # By a program that says nothing meanwhile.
        return True
    large = LARGE_BYTES // PACKED_RATIO if progress.path.suffix == ".gz" else LARGE_BYTES
    return elapsed_s >= SHOWN_AFTER_S or progress.size_bytes >= large


def in_words(progress: ReadProgress) -> str:
    """What is done: `Reading rank-3.json, 60.0 MB (4 of 8)`."""
    what = "Exporting" if progress.exporting else "Reading"
    place = f" ({progress.number} of {progress.total})" if progress.total > 1 else ""
    return f"{what} {progress.path.name}, {data_size(progress.size_bytes)}{place}"
