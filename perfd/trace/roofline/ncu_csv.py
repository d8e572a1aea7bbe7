"""Reads Nsight Compute's CSV of any page: a row per kernel (`raw`) or per metric (`details`, `--metrics`).

(Source: "Nsight Compute CLI", CSV output. Rows of `details` are shorter than the header, programs' own
output and `==PROF==` lines can stand before it and between, and units are only sometimes base units.)
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from perfd.errors import TraceError
from perfd.trace.roofline.kernel_metrics import KernelMetrics
from perfd.trace.roofline.ncu_names import field_of_label, kernel_of

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_TIMES = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "": 1.0}
_TIME = re.compile(r"([num]|µ)?s(?:ec|econd)?s?$")
_SCALED = re.compile(r"([kmgt])?(?:byte|b|hz|cycle|inst|sector|request|wavefront)s?\b")
_MIN_KERNEL_CELLS = 5
"""The first cells of a row are not measured: ID, process and names."""
_FIELDS = tuple(field.name for field in fields(KernelMetrics) if field.name != "name")
_COMMA_DECIMAL = re.compile(r"\d,\d{1,2}$|\d\.\d{3},\d")
_POINT_DECIMAL = re.compile(r"\d\.\d{1,2}$|\d,\d{3}\.\d")
_DESCRIPTIONS = frozenset({
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
    "Grid Size", "Device", "CC",
})  # fmt: skip
"""Columns that say what ran."""
_METRIC = re.compile(r"[a-z]\w*_[\w.]*", re.ASCII)
"""A column of a raw metric, such as `dram__bytes.sum`, which is the same in every language."""
_SPACES = str.maketrans("", "", " \u00a0\u202f'\u2019")
_PIPE = re.compile(
    r"^([A-Za-z0-9 /()]{2,40}?) is the highest-utilized pipeline \((\d{1,3}(?:\.\d+)?)%\) based on elapsed"
)
_PIPES: Mapping[str, str] = {
    "tensor": "tensor_ratio", "fma": "fma_ratio", "alu": "alu_ratio", "fp64": "fp64_ratio",
    "fp16": "fp16_ratio",
}  # fmt: skip
_STALL = re.compile(r"spends (\d{1,9}(?:\.\d+)?) cycles being stalled (.{0,200})")
_REASONS = tuple(
    (reason, re.compile(words, re.IGNORECASE))
    for reason, words in (
        ("gmma", r"WARPGROUP"),
        ("long scoreboard", r"scoreboard dependency on a L1TEX"),
        ("short scoreboard", r"scoreboard dependency on an? MIO"),
        ("mio throttle", r"MIO \(memory input/output\) instruction queue"),
        ("lg throttle", r"L1 instruction queue for local and global"),
        ("tex throttle", r"texture operations"),
        ("barrier", r"sibling warps at a CTA barrier"),
        ("membar", r"memory barrier"),
        ("math pipe throttle", r"execution pipe to be available"),
        ("wait", r"fixed latency"),
        ("drain", r"memory instructions to complete"),
        ("no instruction", r"instruction (?:fetch|cache)|not having the next instruction"),
        ("imc miss", r"immediate constant"),
        ("branch resolving", r"branch target"),
        ("dispatch stall", r"dispatch"),
        ("not selected", r"selected"),
        ("sleeping", r"sleep"),
    )
)
_SECTOR = re.compile(r"for global loads from L1TEX.{0,80}?only (\d{1,2}(?:\.\d+)?) of the 32 bytes")
_EXCESSIVE = re.compile(r"uncoalesced global accesses.{0,80}?excessive sectors \((\d{1,3})% of")
_CONFLICTS = re.compile(r"results? in (\d{1,15}) bank conflicts,.{0,60}?of the overall (\d{1,15}) wavefronts")


@dataclass(frozen=True, slots=True)
class _Numbers:
    """How numbers of one file are written."""

    comma: bool
    """Whether a comma stands before the fraction, as in German; otherwise between thousands."""

    @classmethod
    def of(cls, cells: Iterable[str]) -> _Numbers:
        commas = points = 0
        for cell in cells:
            commas += _COMMA_DECIMAL.search(cell) is not None
            points += _POINT_DECIMAL.search(cell) is not None
        return cls(commas > points)

    def read(self, text: str | None, unit: str) -> float | None:
        """A number in base units."""
        if not text:
            return None
        plain = text.translate(_SPACES)
        plain = plain.replace(".", "").replace(",", ".") if self.comma else plain.replace(",", "")
        try:
            return in_base_units(float(plain), unit)
        except ValueError:
            return None


def read_csv(path: Path) -> list[KernelMetrics]:
    """The kernels of a CSV, in the order in which they ran.

    Raises `TraceError`, naming the file, when it is not such a CSV, has no kernel, or nothing is understood.
    """
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            kernels, names = _kernels(path, _rows(file))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except csv.Error as error:
        raise TraceError(f"{path}: not a CSV of Nsight Compute: {error}.") from error
    if not kernels:
        raise TraceError(f"{path}: the report has no kernels.")
    require_known(path, kernels, names)
    return kernels


def require_known(path: Path, kernels: Sequence[KernelMetrics], names: Iterable[str]) -> None:
    """Raise `TraceError` if nothing is known of any kernel, with some of the names that the file has."""
    if any(getattr(kernel, field) not in (None, ()) for kernel in kernels for field in _FIELDS):
        return
    seen = ", ".join(sorted({name for name in names if name})[:4])
    has = f"; it has {seen}" if seen else ""
    raise TraceError(
        f"{path}: none of its metrics is one that perfd reads{has}. Profile with `--set full`, or with"
        " `--metrics gpu__time_duration.sum,sm__throughput.avg.pct_of_peak_sustained_elapsed,"
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed`."
    )


def base_unit(metric: str) -> str:
    """The unit of a raw metric where all are in base units."""
    if "time_duration" in metric:
        return "ns"
    return "%" if ".pct" in metric or metric.endswith("_pct") else ""


def in_base_units(value: float, unit: str) -> float | None:
    """A metric's value in seconds, bytes, hertz or as a ratio; None if it is not a number."""
    if not math.isfinite(value):
        return None
    plain = unit.strip().lower()
    if plain == "%":
        return value * 0.01
    if found := _TIME.match(plain):
        return value * _TIMES[found[1] or ""]
    if found := _SCALED.match(plain):
        return value * _PREFIXES[found[1] or ""]
    return value


def _rows(file: Iterable[str]) -> Iterator[list[str]]:
    """Cells, without what the profiler and the program printed."""
    lines = (line for line in file if not line.startswith("=="))
    for line in lines:
        if line.lstrip("\ufeff").startswith(('"ID"', "ID")):
            delimiter = ";" if line.count(";") > line.count(",") else ","
            yield from csv.reader([line], delimiter=delimiter, strict=True)
            yield from csv.reader(lines, delimiter=delimiter, strict=True)


def _kernels(path: Path, rows: Iterator[list[str]]) -> tuple[list[KernelMetrics], Sequence[str]]:
    header = next((row for row in rows if "ID" in row[:1]), None)
    if header is None:
        raise TraceError(
            f"{path}: not a CSV of Nsight Compute; make one with"
            " `ncu --import REPORT --csv --page raw --print-units base`."
        )
    if not _is_known(header):
        raise TraceError(
            f"{path}: its header is not one that perfd knows. Its columns must be in English, as"
            " `LC_ALL=C ncu --import REPORT --csv --page raw --print-units base` writes them."
        )
    if "Metric Name" in header:
        return _by_metric(header, rows)
    units, table = next(rows, []), list(rows)
    if not _is_units(units):
        units, table = [], [units, *table]
    table = [row for row in table if row and row[0].strip().isdigit()]
    if any(len(row) < len(header) for row in table):
        raise TraceError(f"{path}: the CSV is truncated: a row has fewer values than the header has names.")
    numbers = _Numbers.of(cell for row in table for cell in row[_MIN_KERNEL_CELLS:])
    unit_of = dict(zip(header, units, strict=False))
    return [_raw(dict(zip(header, row, strict=False)), unit_of, numbers) for row in table], header[11:]


def _is_known(header: Sequence[str]) -> bool:
    if "Kernel Name" not in header:
        return False
    others = [name for name in header if name not in _DESCRIPTIONS]
    return not others or "Metric Name" in others or any(_METRIC.fullmatch(name) for name in others)


def _is_units(row: Sequence[str]) -> bool:
    return not (row and row[0].strip().isdigit())


def _raw(row: Mapping[str, str], units: Mapping[str, str], numbers: _Numbers) -> KernelMetrics:
    def value(name: str) -> float | None:
        unit = units.get(name)
        return numbers.read(row.get(name), base_unit(name) if unit is None else unit)

    return kernel_of(row.get("Kernel Name", ""), row, value)


def _by_metric(header: Sequence[str], rows: Iterable[list[str]]) -> tuple[list[KernelMetrics], Sequence[str]]:
    names: dict[str, str] = {}
    cells_of: dict[str, list[dict[str, str]]] = {}
    for cells in rows:
        row = dict(zip(header, cells, strict=False))
        key = row.get("ID", "")
        if key.strip().isdigit():
            names.setdefault(key, row.get("Kernel Name", ""))
            cells_of.setdefault(key, []).append(row)
    metrics = [row for of_kernel in cells_of.values() for row in of_kernel if row.get("Metric Name")]
    numbers = _Numbers.of(row.get("Metric Value", "") for row in metrics)
    kernels = [_kernel(names[key], of_kernel, numbers) for key, of_kernel in cells_of.items()]
    return kernels, [row["Metric Name"] for row in metrics]


def _kernel(name: str, rows: Iterable[Mapping[str, str]], numbers: _Numbers) -> KernelMetrics:
    raw: dict[str, float] = {}
    labeled: dict[str, Any] = {}
    ruled: dict[str, Any] = {}
    stalls: list[tuple[str, float]] = []
    for row in rows:
        label, unit = row.get("Metric Name", ""), row.get("Metric Unit", "")
        value = numbers.read(row.get("Metric Value"), unit)
        if label and value is not None:
            if (field := field_of_label(label, unit)) is not None:
                labeled.setdefault(field, value)
            else:
                raw[label] = value
        for field, found in _read_rule(row.get("Rule Description") or "").items():
            if isinstance(found, tuple):
                stalls.append(found)
            else:
                ruled.setdefault(field, found)
    kernel = kernel_of(name, raw, raw.get)
    values = {field: getattr(kernel, field) for field in _FIELDS}
    bandwidth = labeled.pop("dram_bytes_per_s", None)
    for field, value in {**ruled, **labeled}.items():
        if values[field] is None:
            values[field] = value
    if values["dram_bytes"] is None and bandwidth and values["duration_s"]:
        values["dram_bytes"] = bandwidth * values["duration_s"]
    values["stalls"] = values["stalls"] or tuple(sorted(stalls, key=lambda stall: -stall[1]))
    return KernelMetrics(name=name, **values)


def _read_rule(text: str) -> dict[str, float | tuple[str, float]]:
    """Fields of `KernelMetrics` that a sentence has; `stall` is a reason and its cycles. Empty for others."""
    found: dict[str, float | tuple[str, float]] = {}
    if pipe := _PIPE.search(text):
        field = _PIPES.get(pipe[1].lower().split(" ")[0])
        if field:
            found[field] = float(pipe[2]) / 100
    if stall := _STALL.search(text):
        reason = next((name for name, words in _REASONS if words.search(stall[2])), None)
        if reason:
            found["stall"] = (reason, float(stall[1]))
    if sector := _SECTOR.search(text):
        found["bytes_used_per_sector"] = float(sector[1])
    if excessive := _EXCESSIVE.search(text):
        found["excessive_sector_ratio"] = float(excessive[1]) / 100
    if conflicts := _CONFLICTS.search(text):
        found["bank_conflicts"], found["shared_wavefronts"] = float(conflicts[1]), float(conflicts[2])
    return found
