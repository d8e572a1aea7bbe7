"""What Nsight Compute measured of kernels, and how its CSV is read: `raw`, a row a kernel, and `details`.

(Source: "Nsight Compute CLI", CSV output. Rows of `details` are shorter than the header, programs' own
output and `==PROF==` lines can stand before it, and units are only sometimes base units.)
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfd.errors import TraceError
from perfd.trace.roofline.roofline_model import AT_LIMIT_RATIO, RooflineVerdict, verdict_of

_STALL = "smsp__average_warps_issue_stalled_"
_STALL_END = "_per_issue_active.ratio"
_RAW = {
    "compute_ratio": ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
    "memory_ratio": ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",),
    "dram_ratio": (
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    "occupancy_ratio": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "tensor_ratio": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    ),
    "duration_s": ("gpu__time_duration.sum",),
    "waves": ("launch__waves_per_multiprocessor",),
}
_DETAILS = {
    ("GPU Speed Of Light Throughput", "Compute (SM) Throughput"): "compute_ratio",
    ("GPU Speed Of Light Throughput", "Compute (SM) [%]"): "compute_ratio",
    ("GPU Speed Of Light Throughput", "Memory Throughput"): "memory_ratio",
    ("GPU Speed Of Light Throughput", "Memory [%]"): "memory_ratio",
    ("GPU Speed Of Light Throughput", "DRAM Throughput"): "dram_ratio",
    ("GPU Speed Of Light Throughput", "Duration"): "duration_s",
    ("Occupancy", "Achieved Occupancy"): "occupancy_ratio",
    ("Launch Statistics", "Waves Per SM"): "waves",
}
_UNITS = {
    "%": 0.01, "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3,
    "s": 1.0, "second": 1.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMetrics:
    """One profiled kernel. None for what the report does not hold."""

    name: str
    duration_s: float | None = None
    compute_ratio: float | None = None
    """Of the peak of the busiest unit of the SM."""
    memory_ratio: float | None = None
    """Of the peak of the busiest part of the memory system."""
    dram_ratio: float | None = None
    occupancy_ratio: float | None = None
    tensor_ratio: float | None = None
    waves: float | None = None
    stalls: Sequence[tuple[str, float]] = ()
    """Reasons, in warps stalled for each issued instruction, the worst first."""

    @property
    def verdict(self) -> RooflineVerdict | None:
        """What limits it, by the documented thresholds; None without both throughputs."""
        if self.compute_ratio is None or self.memory_ratio is None:
            return None
        return verdict_of(self.compute_ratio, self.memory_ratio)

    @property
    def at_limit(self) -> bool | None:
        """Whether the unit that limits it has nothing left to give."""
        if self.compute_ratio is None or self.memory_ratio is None:
            return None
        return max(self.compute_ratio, self.memory_ratio) >= AT_LIMIT_RATIO


def read_csv(path: Path) -> list[KernelMetrics]:
    """The kernels of a CSV, in the order in which they ran.

    Raises `TraceError`, naming the file, when it is no such CSV or holds no kernel.
    """
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            kernels = _kernels(path, csv.reader(_lines(file), strict=True))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except csv.Error as error:
        raise TraceError(f"{path}: not a CSV of Nsight Compute: {error}.") from error
    if not kernels:
        raise TraceError(f"{path}: the report holds no kernel.")
    return kernels


def kernel_of(name: str, metrics: Iterable[str], value: Callable[[str], float | None]) -> KernelMetrics:
    """A kernel from what Nsight Compute calls its metrics; `value` gives one of them in base units."""
    values: dict[str, Any] = {
        field: found
        for field, names in _RAW.items()
        if (found := next(filter(_is_known, map(value, names)), None)) is not None
    }
    reasons = [metric for metric in metrics if metric.startswith(_STALL) and metric.endswith(_STALL_END)]
    stalls = [
        (metric.removeprefix(_STALL).removesuffix(_STALL_END).replace("_", " "), warps)
        for metric in reasons
        if (warps := value(metric)) is not None
    ]
    stalls = sorted((stall for stall in stalls if stall[0] != "selected"), key=lambda stall: -stall[1])
    return KernelMetrics(name=name, stalls=tuple(stalls), **values)


def base_unit(metric: str) -> str:
    """The unit of one of these metrics where all are in base units."""
    if metric in _RAW["duration_s"]:
        return "ns"
    return "%" if ".pct_of_peak_" in metric else ""


def in_base_units(value: float, unit: str) -> float | None:
    """A metric's value in seconds or as a ratio; None if it is not a number."""
    return value * _UNITS.get(unit, 1.0) if math.isfinite(value) else None


def _kernels(path: Path, rows: Iterator[list[str]]) -> list[KernelMetrics]:
    header = next((row for row in rows if "ID" in row[:1] and "Kernel Name" in row), None)
    if header is None:
        raise TraceError(
            f"{path}: not a CSV of Nsight Compute; make one with"
            " `ncu --import REPORT --csv --page raw --print-units base`."
        )
    if "Metric Name" in header:
        return _details(header, rows)
    units, table = next(rows, []), list(rows)
    if any(len(row) < len(header) for row in table):
        raise TraceError(f"{path}: the CSV is cut: a row has fewer values than the header has names.")
    return [
        _raw(dict(zip(header, row, strict=False)), dict(zip(header, units, strict=False))) for row in table
    ]


def _lines(file: Iterable[str]) -> Iterator[str]:
    """The CSV without what the profiler and the program printed before it."""
    return (line for line in file if not line.startswith("=="))


def _raw(row: Mapping[str, str], units: Mapping[str, str]) -> KernelMetrics:
    return kernel_of(row.get("Kernel Name", ""), row, lambda name: _value(row.get(name), units.get(name, "")))


def _details(header: Sequence[str], rows: Iterable[list[str]]) -> list[KernelMetrics]:
    names: dict[str, str] = {}
    values: dict[str, dict[str, Any]] = {}
    for cells in rows:
        row = dict(zip(header, cells, strict=False))
        key = row.get("ID", "")
        names.setdefault(key, row.get("Kernel Name", ""))
        field = _DETAILS.get((row.get("Section Name", ""), row.get("Metric Name", "")))
        value = _value(row.get("Metric Value"), row.get("Metric Unit", ""))
        if field and value is not None:
            values.setdefault(key, {})[field] = value
    return [KernelMetrics(name=name, **values.get(key, {})) for key, name in names.items() if key]


def _value(text: str | None, unit: str) -> float | None:
    """A number in base units; thousands are separated by commas on some pages."""
    if not text:
        return None
    try:
        return in_base_units(float(text.replace(",", "")), unit)
    except ValueError:
        return None


def _is_known(value: float | None) -> bool:
    return value is not None
