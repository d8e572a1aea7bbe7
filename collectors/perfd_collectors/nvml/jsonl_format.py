"""Decodes the lines of `nvml.jsonl`: one GPU at one time each, in NVML's units."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

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
"""Column, key in the line, and the key's units per unit of the column."""

_ENTITY = re.compile(r"\d{1,4}(/\d{1,4})?")
_NOT_FINITE = re.compile(rb"(?<=[:\[,\s])(?:NaN|-?Infinity)(?=\s*[,}\]])")
_MAX_ROUNDING_NS = 10_000
"""How far `unix_ns` may be from `unix_s`, which is rounded to 1 µs; else one of them is wrong."""
_MAX_UNIX_S = 9e9
"""Later times do not fit in 64 bits as nanoseconds."""

_Gpm: Any = msgspec.defstruct("_Gpm", [(metric.name, float | None, None) for metric in GPM_METRICS], gc=False)


class _Line(msgspec.Struct, gc=False):
    unix_s: float
    gpu: int | str
    unix_ns: int | None = None
    """The exact time; `unix_s` is rounded."""
    gpm: _Gpm | None = None
    utilization_gpu_percent: float | None = None
    utilization_memory_percent: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    clocks_event_reasons: float | None = None
    memory_used_bytes: float | None = None
    columns: dict[str, float] | None = None
    """Columns without a key, or whose value would be rounded in the key's unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRow:
    """One line in SI units; `values` has only the columns present in it."""

    time_unix_ns: int
    entity: str
    values: Mapping[str, float]


def decode_lines(lines: Iterable[bytes]) -> Iterator[RecordedRow | None]:
    """A row per line that is not blank; None for an invalid one."""
    decoder = msgspec.json.Decoder(_Line)
    for line in lines:
        if line.strip():
            yield _decoded(decoder, line)


def _decoded(decoder: msgspec.json.Decoder[_Line], line: bytes) -> RecordedRow | None:
    try:
        return _row(decoder.decode(line))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        repaired = _NOT_FINITE.sub(b"null", line)
    # Python's json module writes NaN, which is not JSON; GPM reports NaN for power-gated memory.
    try:
        return _row(decoder.decode(repaired)) if repaired != line else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
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
    if line.unix_ns is not None and abs(line.unix_ns - rounded) < _MAX_ROUNDING_NS:
        return line.unix_ns
    return rounded
