"""`perfd trace table` and `export` themselves, apart from their arguments because this imports NumPy."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase

import msgspec
from rich.text import Text

from perfd.cli.terminal import Terminal
from perfd.cli.terminal_table import TerminalTable
from perfd.cli.traces import trace_reading
from perfd.errors import TraceError
from perfd.formatting import UNKNOWN, bandwidth, data_size, duration, percent
from perfd.report.display_names import kernel_name
from perfd.trace.diagnosis import TraceSettings, analyse, diagnose
from perfd.trace.export import capture_tracks, write_perfetto
from perfd.trace.readers.trace_files import with_folders_opened
from perfd.trace.tables import Cell, TraceTable, needs_spans, tables_of

_NAME_WIDTH = 56
"""Columns of a kernel's name on a terminal; JSON and CSV have it whole."""
_OPTIONAL = frozenset({"", "number"})
"""Units of columns that are left out where all cells are empty; CSV and JSON have all."""
_FORMATS: Mapping[str, Callable[[float], str]] = {
    "s": duration,
    "bytes": data_size,
    "bytes/s": bandwidth,
    "ratio": percent,
    "count": lambda value: f"{value:,.0f}" if value == int(value) else f"{value:,.1f}",
    "number": lambda value: f"{value:,.0f}" if value == int(value) else f"{value:,.6g}",
}
_UNITS = ("_s", "_bytes", "_bytes_per_s", "_ratio", "_count")
_WHAT = {"_bytes": " size", "_bytes_per_s": " bandwidth", "_ratio": " share"}
"""Suffixes for columns whose names differ only in the unit; the one with a time has none."""


def wanted_tables(args: argparse.Namespace) -> list[TraceTable]:
    """The tables of the named files; raises `TraceError` for a rank or a range that none of them has."""
    files, rank, in_range = with_folders_opened(args.files), args.rank, args.range
    traces = trace_reading.read(args, files, args.nsys, detailed=True, spans=needs_spans(args.names))
    chosen = [trace for trace in traces if rank in {None, trace.rank}]
    if not chosen:
        known = ", ".join(str(trace.rank) for trace in traces)
        raise TraceError(f"No trace is of rank {rank}; there are {known}.")
    if in_range is not None and not any(
        fnmatchcase(one.name, in_range) for it in chosen for one in it.phases
    ):
        raise TraceError(f"No trace has a range {in_range}: `perfd trace table ranges` lists them.")
    return tables_of(chosen, args.names, in_range)


def to_json(tables: Sequence[TraceTable]) -> str:
    """One object of schema perfd.trace_tables/1."""
    document = {"schema": "perfd.trace_tables/1", "tables": [asdict(table) for table in tables]}
    return msgspec.json.encode(document).decode()


def show(tables: Sequence[TraceTable], most_rows: int) -> None:
    """Print the tables for people."""
    console = Terminal()
    for found in tables:
        if not found.rows:
            console.print(Text(f"{found.title}: {found.missing or 'nothing'}"))
            continue
        kept = [
            at
            for at, column in enumerate(found.columns)
            if column.unit not in _OPTIONAL or any(row[at] not in {None, ""} for row in found.rows)
        ]
        headings = _headings([found.columns[at].name for at in kept])
        texts = [number for number, at in enumerate(kept) if not found.columns[at].unit]
        # A rank's rows differ by their first text.
        table = TerminalTable(found.title, keys=texts[0] + 1 if texts else 1)
        for at, heading in zip(kept, headings, strict=True):
            column = found.columns[at]
            table.add_column(
                heading,
                justify="right" if column.unit else "left",
                overflow="fold",
            )
        for row in found.rows[:most_rows]:
            table.add_row(*(Text(_words(row[at], found.columns[at].unit)) for at in kept))
        console.print(table)
        if len(found.rows) > most_rows:
            console.print(
                Text(f"{len(found.rows) - most_rows:,} more rows: --rows, --csv or --json.", style="dim")
            )


def _unit(name: str) -> str:
    return next((unit for unit in sorted(_UNITS, key=len, reverse=True) if name.endswith(unit)), "")


def _heading(name: str) -> str:
    if name == "bytes_per_s":
        return "bandwidth"
    unit = _unit(name)
    return name.removesuffix(unit).replace("_", " ") if name.removesuffix(unit) else name


def _headings(names: Sequence[str]) -> list[str]:
    """Column headings without units, which the values show; equal ones get a suffix."""
    headings = [_heading(name) for name in names]
    return [
        heading + _WHAT.get(_unit(name), "") if headings.count(heading) > 1 else heading
        for name, heading in zip(names, headings, strict=True)
    ]


def _words(value: Cell, unit: str) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return kernel_name(value, _NAME_WIDTH)
    return _FORMATS[unit](value)


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
