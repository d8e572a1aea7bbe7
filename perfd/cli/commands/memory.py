"""`perfd memory`."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from rich.text import Text

from perfd.cli.terminal import Terminal
from perfd.cli.terminal_table import TerminalTable
from perfd.cli.traces.confined_reading import confinement
from perfd.formatting import data_size, duration, percent
from perfd.trace.memory.allocation_history import AllocationHistory
from perfd.trace.memory.memory_files import memory_of
from perfd.trace.memory.memory_findings import as_document, memory_findings, places, sizes_by_use

_PLACES = 12
"""Rows of the table: more places hold too little to matter."""
_COLUMNS = 60
"""Width of the timeline, which fits on 80 columns with its scale."""
_BARS = "▁▂▃▄▅▆▇█"
_EPILOG = """\
A snapshot, in the job: torch.cuda.memory._record_memory_history() before the model is made, and
torch.cuda.memory._dump_snapshot("memory.pickle") after some steps, or when an allocation fails. The file is
read as plain data: nothing in it is executed.
A trace, by PyTorch's profiler: profile(profile_memory=True), for lines of code also with_stack=True. What
was in use before the profile began has no known use.
With --json it prints one object: {"schema": "perfd.memory/1", "gpus": [{"file", "gpu", "peak_bytes",
"peak_reserved_bytes", "reserved_at_peak_bytes", "peak_time_us", "allocated_bytes", "reserved_bytes",
"unused_pieces_bytes", "largest_unused_piece_bytes" (null of a trace), "expandable_segments", "events",
"levels": [{"time_us", "allocated_bytes", "reserved_bytes"}], "at_peak_bytes", "places", "failed",
"findings"}]}.
Exit codes: 0 it was printed; 2 a file cannot be read, with the reason.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="snapshots of PyTorch's memory (.pickle[.gz]) or traces of its profiler (.json[.gz])",
    )
    parser.add_argument("--json", action="store_true", help="print only one object of schema perfd.memory/1")


def run(args: argparse.Namespace) -> int:
    """Print what fills the memory of each GPU at its peak."""
    confinement(args, args.files)()
    histories = [(str(path), history) for path in args.files for history in memory_of(path)]
    if args.json:
        print(msgspec.json.encode(as_document(histories)).decode())
        return 0
    console = Terminal()
    for file, history in histories:
        if len(args.files) > 1:
            console.print(Text(file, style="dim"))
        _show(console, history)
    return 0


def _show(console: Terminal, history: AllocationHistory) -> None:
    peak = f"{data_size(history.peak_bytes)} in use, {data_size(history.peak_reserved_bytes)} reserved"
    end = f"{data_size(history.allocated_bytes)} in use, {data_size(history.reserved_bytes)} reserved"
    console.print(Text(f"GPU {history.device}: at most {peak}; at the end {end}.", style="bold"))
    if len(history.levels) > 1:
        begin, end_us = history.levels[0].time_us, history.levels[-1].time_us
        console.print(Text(f"In use over {duration((end_us - begin) / 1e6)}: {_line(history)}"))
    if not history.events:
        console.print(
            Text("No events were recorded, so the peak is the end: call _record_memory_history() first.")
        )
    for finding in memory_findings(history):
        console.print(Text(f"- {finding.evidence} {finding.advice}"))
    table = _table("In use at the peak", "use", "size", "share")
    for use, size in sizes_by_use(history):
        table.add_row(use.value, data_size(size), percent(history.share_of_peak(size)))
    console.print(table)
    table = _table("Allocated by", "code", "use", "count", "size", "share")
    for place in places(history)[:_PLACES]:
        share = percent(history.share_of_peak(place.size_bytes))
        table.add_row(place.where, place.use.value, str(place.count), data_size(place.size_bytes), share)
    console.print(table)


def _line(history: AllocationHistory) -> str:
    """What was in use over time, as a line of bars; a bar is the most within its part of the time."""
    begin_us, end_us = history.levels[0].time_us, history.levels[-1].time_us
    most = [0] * _COLUMNS
    for level in history.levels:
        column = (level.time_us - begin_us) * (_COLUMNS - 1) // max(1, end_us - begin_us)
        most[column] = max(most[column], level.allocated_bytes)
    # Between two events nothing changes.
    for column in range(1, _COLUMNS):
        most[column] = most[column] or most[column - 1]
    return "".join(_BARS[min(len(_BARS) - 1, size * len(_BARS) // max(1, *most))] for size in most)


def _table(title: str, *columns: str) -> TerminalTable:
    table = TerminalTable(title)
    for number, column in enumerate(columns):
        words = column in {"use", "code"} or number == 0
        table.add_column(column, justify="left" if words else "right")
    return table
