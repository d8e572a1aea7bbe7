"""`perfd memory`."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from perfd.cli.terminal import Terminal
from perfd.formatting import data_size, percent
from perfd.trace.memory.allocation_history import AllocationHistory, replay
from perfd.trace.memory.memory_findings import as_document, memory_findings, places, sizes_by_use
from perfd.trace.memory.memory_snapshot import read_snapshot

_PLACES = 12
_EPILOG = """\
In the job: torch.cuda.memory._record_memory_history() before the model is made, and
torch.cuda.memory._dump_snapshot("memory.pickle") after some steps, or when an allocation fails. The file is
read as plain data: nothing in it is executed.
With --json it prints one object: {"schema": "perfd.memory/1", "gpus": [{"gpu", "peak_bytes",
"peak_reserved_bytes", "allocated_bytes", "reserved_bytes", "unused_pieces_bytes",
"largest_unused_piece_bytes", "expandable_segments", "events", "at_peak_bytes", "places", "failed",
"findings"}]}.
Exit codes: 0 it was printed; 2 the file cannot be read, with the reason.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("file", type=Path, metavar="FILE", help="snapshot of PyTorch's memory (.pickle[.gz])")
    parser.add_argument("--json", action="store_true", help="print one object of schema perfd.memory/1, only")


def run(args: argparse.Namespace) -> int:
    """Print what fills the memory of each GPU at its peak."""
    histories = [replay(memory) for memory in read_snapshot(args.file)]
    if args.json:
        print(msgspec.json.encode(as_document(histories)).decode())
        return 0
    console = Terminal()
    for history in histories:
        _show(console, history)
    return 0


def _show(console: Terminal, history: AllocationHistory) -> None:
    peak = f"{data_size(history.peak_bytes)} in use, {data_size(history.peak_reserved_bytes)} reserved"
    end = f"{data_size(history.allocated_bytes)} in use, {data_size(history.reserved_bytes)} reserved"
    console.print(Text(f"GPU {history.device}: at most {peak}; at the end {end}.", style="bold"))
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


def _table(title: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE, title=title, title_justify="left", pad_edge=False)
    for number, column in enumerate(columns):
        words = column in {"use", "code"} or number == 0
        table.add_column(column, justify="left" if words else "right")
    return table
