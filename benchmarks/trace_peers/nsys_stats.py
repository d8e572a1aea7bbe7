"""What `nsys stats` reports of an export, beside perfd's tables of the same export.

Reports are CSV files as `nsys stats --format csv --output PREFIX` names them, `PREFIX_REPORT.csv`: made now,
or recorded, since Nsight Systems is not on most machines that run this.
"""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perfd.trace.readers.trace_files import read_traces
from perfd.trace.tables import tables_of
from perfd.trace.tables.range_tables import pattern_of

RECORDED = "nsys-stats-2025.3"
"""The folder of recorded reports, beside the captures of tests."""
FURTHER_REPORTS = ("cuda_gpu_kern_gb_sum", "cuda_kern_exec_sum", "nvtx_gpu_proj_sum")
"""Compared where they are recorded; the others are the default reports of `nsys stats`."""
_Row = Mapping[str, object]
_VERSION = re.compile(r"_v\d+$")
_COPY = re.compile(r"Memcpy (\w)to(\w)")
_ENDS = {"H": "Host", "D": "Device", "P": "Peer"}


@dataclass
class _Sums:
    """Numbers of one key; medians and deviations only while they are of one row."""

    numbers: dict[str, float] = field(default_factory=dict)
    rows: int = 0

    def add(self, added: Mapping[str, float]) -> None:
        for name, value in added.items():
            if self.rows == 0 or name not in self.numbers:
                self.numbers[name] = value
            elif name.startswith("min"):
                self.numbers[name] = min(self.numbers[name], value)
            elif name.startswith("max"):
                self.numbers[name] = max(self.numbers[name], value)
            else:
                self.numbers[name] += value
        self.rows += 1

    def said(self) -> dict[str, float]:
        """What is right of several rows too."""
        one = self.rows == 1
        return {
            name: value
            for name, value in self.numbers.items()
            if one or name.startswith(("count", "total", "min", "max"))
        }


@dataclass(frozen=True)
class _Comparison:
    """How rows of a report and of a table become keys and numbers with one name each."""

    table: str
    theirs: Mapping[str, str]
    """Columns of the report by the number's name."""
    ours: Mapping[str, str]
    """Columns of the table, likewise."""
    key_of_theirs: Callable[[_Row], str]
    key_of_ours: Callable[[_Row], str | None]
    """None for a row that the report leaves out."""
    scale: float = 1e9
    """Of perfd's seconds or bytes, to what the report has."""
    digits: int = 1
    """Behind the point, in the report."""


def run_reports(nsys: str, export: Path, folder: Path, capture: str) -> None:
    """Write the default reports of `nsys stats` and the further ones, as `CAPTURE_REPORT.csv` in a folder."""
    for reports in ([], ["--report", ",".join(FURTHER_REPORTS)]):
        subprocess.run(
            [
                *(nsys, "stats", *reports, "--format", "csv", "--force-overwrite=true"),
                *("--output", str(folder / capture), str(export)),
            ],
            check=True,
            capture_output=True,
        )


def beside_nsys_stats(
    export: Path, reports: Path, capture: str
) -> Iterator[tuple[str, dict[str, float], dict[str, float]]]:
    """Per report that is recorded: its name, perfd's numbers and those of Nsight Systems.

    Nanoseconds, megabytes (10^6 bytes) and counts over all processes, by name. A median or deviation is
    compared where one row of each has that name.
    """
    present = {name: reports / f"{capture}_{name}.csv" for name in _COMPARISONS}
    present = {name: path for name, path in present.items() if path.is_file() and path.stat().st_size}
    if not present:
        return
    tables = sorted({_COMPARISONS[name].table for name in present})
    rows: dict[str, list[_Row]] = {}
    for table in tables_of(read_traces([export], detailed=True), tables):
        names = [column.name for column in table.columns]
        rows[table.name] = [dict(zip(names, row, strict=True)) for row in table.rows]
    for name, path in present.items():
        how = _COMPARISONS[name]
        with path.open(encoding="utf-8", newline="") as file:
            theirs = _summed(csv.DictReader(file), how.key_of_theirs, how.theirs)
        ours = _summed(rows[how.table], how.key_of_ours, how.ours, how)
        # A row that one has as several (memory kinds, versions of a call) has no median on either side.
        yield name, _flat(ours, theirs), _flat(theirs, ours)


def _summed(
    rows: Iterator[_Row] | csv.DictReader[str] | list[_Row],
    key_of: Callable[[_Row], str | None],
    columns: Mapping[str, str],
    how: _Comparison | None = None,
) -> dict[str, _Sums]:
    found: dict[str, _Sums] = {}
    for row in rows:
        key = key_of(row)
        if key is None:
            continue
        numbers = {}
        for name, column in columns.items():
            value = row.get(column)
            if value in (None, ""):
                continue
            number = float(str(value))
            if how is not None and not name.startswith("count"):
                number *= how.scale
            numbers[name] = number
        found.setdefault(key, _Sums()).add(numbers)
    if how is not None:
        for sums in found.values():
            sums.numbers = {name: round(value, how.digits) for name, value in sums.numbers.items()}
    return found


def _flat(rows: Mapping[str, _Sums], others: Mapping[str, _Sums]) -> dict[str, float]:
    return {
        f"{key} {name}": value
        for key, sums in rows.items()
        for name, value in sums.said().items()
        if key not in others or name in others[key].said()
    }


def _named(row: _Row) -> str:
    return _VERSION.sub("", str(row["Name"]))


def _kernel(row: _Row) -> str | None:
    # Graphs that were recorded as a whole are of no report on kernels.
    name = str(row["kernel"])
    return None if name.startswith("CUDA graph") else name


def _copy(row: _Row) -> str:
    found = _COPY.match(str(row["operation"]))
    if found is None:
        return "[CUDA memset]"
    return f"[CUDA memcpy {_ENDS[found[1]]}-to-{_ENDS[found[2]]}]"


def _shape(row: _Row) -> str:
    blocks, threads = (" ".join(str(row[name]).split()) for name in ("GridXYZ", "BlockXYZ"))
    return f"{row['Name']} {blocks} {threads}"


def _our_shape(row: _Row) -> str:
    blocks, threads = (str(row[name]).replace("x", " ") for name in ("blocks", "threads"))
    return f"{row['kernel']} {blocks} {threads}"


def _range(row: _Row) -> str:
    domain, _, name = str(row["Range"]).partition(":")
    return f"{domain}:{pattern_of(name)}"


def _times(total: str, count: str) -> dict[str, str]:
    return {
        "total": total, "count": count, "mean": "Avg (ns)", "median": "Med (ns)", "min": "Min (ns)",
        "max": "Max (ns)", "deviation": "StdDev (ns)",
    }  # fmt: skip


_STATISTICS = ("total", "mean", "median", "min", "max", "deviation")
_TIMES = {"count": "count", **{name: f"{name}_s" for name in _STATISTICS}}
_COMPARISONS: Mapping[str, _Comparison] = {
    "cuda_gpu_kern_sum": _Comparison(
        "kernels", _times("Total Time (ns)", "Instances"), _TIMES, lambda row: str(row["Name"]), _kernel
    ),
    "cuda_api_sum": _Comparison(
        "api", _times("Total Time (ns)", "Num Calls"), _TIMES, _named, lambda row: str(row["call"])
    ),
    "osrt_sum": _Comparison(
        "os", _times("Total Time (ns)", "Num Calls"), _TIMES, _named, lambda row: str(row["call"])
    ),
    "cuda_gpu_mem_time_sum": _Comparison(
        "copies", _times("Total Time (ns)", "Count"), _TIMES, lambda row: str(row["Operation"]), _copy
    ),
    "cuda_gpu_mem_size_sum": _Comparison(
        "copies",
        {
            "total": "Total (MB)", "count": "Count", "mean": "Avg (MB)", "median": "Med (MB)",
            "min": "Min (MB)", "max": "Max (MB)",
        },
        {
            "total": "size_bytes", "count": "count", "mean": "mean_bytes", "median": "median_bytes",
            "min": "min_bytes", "max": "max_bytes",
        },
        lambda row: str(row["Operation"]),
        _copy,
        scale=1e-6,
        digits=3,
    ),
    "nvtx_sum": _Comparison(
        "ranges",
        _times("Total Time (ns)", "Instances"),
        {name: column if name == "count" else f"host_{column}" for name, column in _TIMES.items()},
        _range,
        lambda row: f"{row['domain']}:{row['range']}",
    ),
    "nvtx_gpu_proj_sum": _Comparison(
        "ranges",
        {"total": "Total Proj Time (ns)", "count": "Total GPU Ops"},
        {"total": "gpu_s", "count": "operations_count"},
        _range,
        lambda row: f"{row['domain']}:{row['range']}",
    ),
    "cuda_gpu_kern_gb_sum": _Comparison(
        "shapes",
        _times("Total Time (ns)", "Instances"),
        _TIMES,
        _shape,
        _our_shape,
    ),
    "cuda_kern_exec_sum": _Comparison(
        "launches",
        {
            "count": "Count", "median call": "AMed (ns)", "max call": "AMax (ns)", "max queue": "QMax (ns)",
            "median run": "KMed (ns)", "max run": "KMax (ns)",
        },
        {
            "count": "count", "median call": "call_median_s", "max call": "call_max_s",
            "max queue": "queue_max_s", "median run": "run_median_s", "max run": "run_max_s",
        },
        lambda row: str(row["Kernel Name"]),
        lambda row: None if str(row["operation"]).startswith("Mem") else str(row["operation"]),
    ),
}  # fmt: skip
