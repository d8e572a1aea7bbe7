"""The lines of a recording's `nvml.jsonl`: one GPU at one instant each, in NVML's units."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from perfd.errors import RecordingError
from perfd.model import SampleTable, Scope
from perfd_collectors.nvml.columns import GPM_METRICS, INDEX, MEGA, PERCENT

SCALARS = (
    ("busy_ratio", "utilization_gpu_percent", PERCENT),
    ("memory_busy_ratio", "utilization_memory_percent", PERCENT),
    ("power_w", "power_w", 1.0),
    ("temperature_celsius", "temperature_c", 1.0),
    ("sm_clock_hz", "sm_clock_mhz", MEGA),
    ("clocks_event_reasons_bits", "clocks_event_reasons", 1.0),
    ("memory_used_bytes", "memory_used_bytes", 1.0),
)
"""Column, key of the line, and the key's units in one of the column's."""

_ENTITY = re.compile(r"\d{1,4}(/\d{1,4})?")
_NOT_FINITE = re.compile(rb"(?<=[:\[,\s])(?:NaN|-?Infinity)(?=\s*[,}\]])")
_ROUNDING_NS = 10_000
_MAX_UNIX_S = 9e9
"""Nanoseconds of later times do not fit in 64 bits."""

_Gpm: Any = msgspec.defstruct("_Gpm", [(metric.name, float | None, None) for metric in GPM_METRICS], gc=False)


class _Line(msgspec.Struct, gc=False):
    unix_s: float
    gpu: int | str
    unix_ns: int | None = None
    """The exact instant, where `unix_s` rounds it."""
    gpm: _Gpm | None = None
    utilization_gpu_percent: float | None = None
    utilization_memory_percent: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    clocks_event_reasons: float | None = None
    memory_used_bytes: float | None = None
    columns: dict[str, float] | None = None
    """Columns that have no key of their own, or whose value the key's unit would round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRow:
    """One line in SI units: what is absent in it is not in `values`."""

    time_unix_ns: int
    entity: str
    values: Mapping[str, float]


def decode_lines(lines: Iterable[bytes]) -> Iterator[RecordedRow | None]:
    """A row for each line that is not blank, or None for one that cannot be understood."""
    decoder = msgspec.json.Decoder(_Line)
    for line in lines:
        if line.strip():
            yield _decoded(decoder, line)


def encode_line(table: SampleTable) -> list[bytes]:
    """The table as lines, one a row, from which `decode_lines` gets back every value that is not NaN.

    Raises `RecordingError` when the table is not about GPUs.
    """
    if table.scope is not Scope.GPU:
        raise RecordingError(f"nvml.jsonl holds samples of GPUs, and these are of scope {table.scope.value}.")
    rows = zip(table.times_unix_ns, table.entities, strict=True)
    return [
        _encoded(unix_ns, entity, {name: values[position] for name, values in table.columns.items()})
        for position, (unix_ns, entity) in enumerate(rows)
    ]


def _decoded(decoder: msgspec.json.Decoder[_Line], line: bytes) -> RecordedRow | None:
    try:
        return _row(decoder.decode(line))
    except (msgspec.DecodeError, UnicodeDecodeError):
        mended = _NOT_FINITE.sub(b"null", line)
    # Python's json module writes NaN as NaN, which is not JSON; GPM says NaN for memory that sleeps.
    try:
        return _row(decoder.decode(mended)) if mended != line else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _row(line: _Line) -> RecordedRow | None:
    entity = str(line.gpu)
    if not (0 <= line.unix_s <= _MAX_UNIX_S and _ENTITY.fullmatch(entity)):
        return None
    values = {
        column: value / per_unit
        for column, key, per_unit in SCALARS
        if (value := getattr(line, key)) is not None
    }
    if line.gpm is not None:
        for metric in GPM_METRICS:
            value = getattr(line.gpm, metric.name)
            if value is not None:
                values[metric.column] = value / metric.per_unit
    if line.columns:
        values |= {name: value for name, value in line.columns.items() if name in INDEX}
    return RecordedRow(
        time_unix_ns=_time_unix_ns(line),
        entity=entity,
        values={name: value for name, value in values.items() if math.isfinite(value)},
    )


def _time_unix_ns(line: _Line) -> int:
    rounded = round(line.unix_s * 1e9)
    if line.unix_ns is not None and abs(line.unix_ns - rounded) < _ROUNDING_NS:
        return line.unix_ns
    return rounded


def _encoded(unix_ns: int, entity: str, row: Mapping[str, float]) -> bytes:
    line: dict[str, object] = {
        "unix_s": round(unix_ns / 1e9, 6),
        "unix_ns": unix_ns,
        "gpu": int(entity) if entity.isdigit() else entity,
    }
    rest = {name: value for name, value in row.items() if math.isfinite(value)}
    gpm = {
        metric.name: told
        for metric in GPM_METRICS
        if (told := _take(rest, metric.column, metric.per_unit)) is not None
    }
    if gpm:
        line["gpm"] = gpm
    for column, key, per_unit in SCALARS:
        told = _take(rest, column, per_unit)
        if told is not None:
            line[key] = told
    if rest:
        line["columns"] = rest
    return json.dumps(line, allow_nan=False).encode() + b"\n"


def _take(row: dict[str, float], column: str, per_unit: float) -> float | int | None:
    """Move a value out of the row, into the key's unit; it stays as well where that would round it."""
    value = row.get(column)
    if value is None:
        return None
    told = float(value) * per_unit
    if not math.isfinite(told):
        return None
    if told / per_unit == value:
        del row[column]
    return int(told) if told.is_integer() else told
