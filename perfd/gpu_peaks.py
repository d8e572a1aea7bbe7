"""The table of dense peaks: the rows that ship, with an operator's own rows before them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import msgspec

from perfd.analysis.flops.gpu_peak_lookup import GpuPeak, PeakTable
from perfd.config import load, parse

_NAME = "gpu_peaks.yaml"


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row of the file; each field is that of `GpuPeak`."""

    name: str
    match: list[str]
    called: list[str] = []
    flops: dict[str, float]
    memory_bytes: float | None = None
    memory_bytes_per_s: float | None = None
    nvlink_bytes_per_s: float | None = None
    pcie_bytes_per_s: float | None = None
    peak_clock_hz: float | None = None
    source: str
    date: str


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file as a whole."""

    gpus: list[_Row]


def load_peaks(override: Path | None = None) -> PeakTable:
    """Read the built-in table; the rows of `override` are tried first and so win.

    Raises `ConfigError` with the file and the path in it when a file is wrong.
    """
    text = files("perfd").joinpath("data", _NAME).read_text(encoding="utf-8")
    own = load(override, _File).gpus if override is not None else []
    rows = parse(text, _File, name=_NAME).gpus
    return PeakTable(gpus=tuple(map(_peak, rows)), own=tuple(map(_peak, own)))


def _peak(row: _Row) -> GpuPeak:
    return GpuPeak(
        name=row.name,
        match=tuple(row.match),
        called=tuple(row.called),
        flops={precision.lower(): flops for precision, flops in row.flops.items()},
        memory_bytes=row.memory_bytes,
        memory_bytes_per_s=row.memory_bytes_per_s,
        nvlink_bytes_per_s=row.nvlink_bytes_per_s,
        pcie_bytes_per_s=row.pcie_bytes_per_s,
        peak_clock_hz=row.peak_clock_hz,
        source=row.source,
        date=row.date,
    )
