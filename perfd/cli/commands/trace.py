"""`perfd trace table` and `perfd trace export`."""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfd.cli.arguments import positive_whole, whole_from_zero

if TYPE_CHECKING:
    from perfd.trace.tables import Cell, TraceTable

_TABLES = (
    "kernels", "shapes", "copies", "copy-sizes", "api", "os", "libraries", "launches", "streams", "queue",
    "idle", "graphs", "graph-launches", "operators", "lines", "modules", "functions", "ranges", "timeline",
    "layers", "overlap", "decode-gaps", "critical-path", "path-gains",
)  # fmt: skip
_EPILOG = """\
Tables, each of the whole trace and by rank:
  kernels     by name: count, total, mean, median, least, 95th percentile, most, standard deviation
  shapes      the same by kernel, blocks and threads, and which kernels look persistent
  copies      copies and fills by direction, with sizes and bandwidth; copy-sizes: also by size
  api         calls into the CUDA or HIP runtime and driver; os: into the operating system (nsys --trace=osrt)
  libraries   calls into cuDNN and cuBLAS (nsys --trace=cudnn,cublas)
  launches    by kernel: launch call, wait in the queue, run; kernels shorter than their call, calls over
              50 µs, kernels that begin more than 100 µs after their call
  streams     priority, how busy each stream is, and how long alone
  queue       operations that are launched and have not begun; how long there were 1,024 or more
  idle        gaps of each stream: not launched yet (host), under 30 µs (kernel), other
  graphs      what CUDA graphs could replace: repetitions, what prevents it, and the estimated gain
  graph-launches  CUDA graphs that ran: launches, nodes, times
  operators   PyTorch's operators with inputs, module and line of code: GPU and host time
  lines       GPU time by line of code, module, operator and kernel
  modules     GPU time by module, and the input bytes of its operators
  functions   Python functions: calls, own time, and time including callees
  ranges      NVTX ranges (by domain) and record_function; names that differ only in numbers are merged
  timeline    every operation in order, with its gap and innermost range
  layers      the model's layers, from repeating kernels: passes, layers, and each operation of a layer
  overlap     collectives: what overlaps them, and how long compute waits for them
  decode-gaps a server's decode steps: the time from one to the next, by what runs between them
  critical-path  the chain of work that determines the capture's length: rank, class, operator, kernel
  path-gains     how much earlier the capture would end if a class of that work took no time
Lines and modules need with_stack=True and with_modules=True, shapes of inputs record_shapes=True.
With --json it prints one object: {"schema": "perfd.trace_tables/1", "tables": [{"name", "title",
"columns": [{"name", "unit"}], "rows": [[...]], "missing"}]}, with all rows. Unknown values are null.
Exit codes: 0 success; 2 a trace cannot be read.
"""
_EXPORT_EPILOG = """\
Tracks: perfd's findings over the whole capture; for each rank the findings that name it, steps, waits in
collectives and for whom, named ranges, GPU streams and calls of the host. Ranks are on the wall clock if all
traces have it; otherwise each begins at zero, and the first track is "findings (ranks have no common clock)".
Exit codes: 0 success; 2 a trace cannot be read or the file cannot be written.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    table = actions.add_parser(
        "table",
        help="print tables of traces",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    table.add_argument("names", metavar="TABLE[,TABLE]", type=_names, help=f"{', '.join(_TABLES)}, or all")
    table.add_argument(
        "files", metavar="FILE", type=Path, nargs="+", help="traces of one capture, or a directory of them"
    )
    table.add_argument("--rank", type=whole_from_zero, metavar="N", help="only this rank")
    table.add_argument(
        "--rows", type=positive_whole, metavar="N", default=20, help="maximum number of rows (default: 20)"
    )
    table.add_argument(
        "--range", metavar="NAME", help="only work launched in ranges of this name; * matches any text"
    )
    form = table.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one object of schema perfd.trace_tables/1")
    form.add_argument(
        "--csv", action="store_true", help="print all rows as CSV, an empty line between tables"
    )
    table.add_argument(
        "--nsys", default="nsys", metavar="PROGRAM", help="nsys program that exports .nsys-rep files"
    )
    export = actions.add_parser(
        "export",
        help="write all ranks into one file for ui.perfetto.dev",
        epilog=_EXPORT_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    export.add_argument(
        "files", metavar="FILE", type=Path, nargs="+", help="traces of one capture, or a directory of them"
    )
    export.add_argument(
        "--perfetto", metavar="OUT", type=Path, required=True, help="file to write (OUT.gz: compressed)"
    )
    export.add_argument(
        "--nsys", default="nsys", metavar="PROGRAM", help="nsys program that exports .nsys-rep files"
    )


def run(args: argparse.Namespace) -> int:
    """Print the tables, or write the file."""
    # As numpy is loaded: nothing here is for its linear algebra.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if args.action == "export":
        from perfd.cli.traces.table_output import export  # noqa: PLC0415

        return export(args)
    from perfd.cli.traces.table_output import show, to_json, wanted_tables  # noqa: PLC0415

    tables = wanted_tables(args)
    if args.json:
        print(to_json(tables))
    elif args.csv:
        _as_csv(tables)
    else:
        show(tables, args.rows)
    return 0


def _as_csv(tables: Sequence[TraceTable]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for number, table in enumerate(tables):
        if number:
            print()
        writer.writerow([column.name for column in table.columns])
        writer.writerows([_plain(cell) for cell in row] for row in table.rows)


def _plain(cell: Cell) -> Cell:
    """A spreadsheet must not take a name from a trace for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in {"=", "+", "-", "@"} else cell


def _names(text: str) -> list[str]:
    if text == "all":
        return list(_TABLES)
    names = text.split(",")
    for name in names:
        if name not in _TABLES:
            raise argparse.ArgumentTypeError(
                f"{name!r} is not a table: choose from {', '.join(_TABLES)}, or all."
            )
    return names
