"""`perfd trace export`, apart from its arguments because it imports NumPy."""

from __future__ import annotations

import argparse

from perfd.cli.traces import trace_reading
from perfd.errors import TraceError
from perfd.trace.diagnosis import TraceSettings, analyse, diagnose
from perfd.trace.export import capture_tracks, write_perfetto
from perfd.trace.readers.trace_files import with_folders_opened


def export(args: argparse.Namespace) -> int:
    """Write one file of all ranks; raises `TraceError` if a trace cannot be read or the file not written."""
    files, target = with_folders_opened(args.files), args.perfetto
    traces = trace_reading.read(args, files, args.nsys, written=target)
    analysis = analyse(traces, TraceSettings())
    if not analysis.ranks:
        raise TraceError("No trace says which rank it belongs to.")
    try:
        slices = write_perfetto(capture_tracks(analysis, diagnose(analysis)), target)
    except OSError as error:
        raise TraceError(f"{target}: cannot be written: {error.strerror or error}.") from error
    print(f"{target}: {len(analysis.ranks)} ranks, {slices:,} slices. Open it at https://ui.perfetto.dev.")
    return 0
