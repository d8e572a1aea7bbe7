"""The table of dense peaks: the rows that ship, with an operator's own rows before them."""

from __future__ import annotations

import functools
from importlib.resources import files
from pathlib import Path

import msgspec

from perfd.analysis.flops.gpu_peak_lookup import GpuPeak, PeakTable
from perfd.config import load, parse
from perfd.errors import ConfigError

_NAME = "gpu_peaks.yaml"
_FIGURES = frozenset(
    {"memory_bytes", "memory_bytes_per_s", "nvlink_bytes_per_s", "pcie_bytes_per_s", "peak_clock_hz"}
)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file as a whole."""

    gpus: list[GpuPeak]


def load_peaks(override: Path | None = None) -> PeakTable:
    """Read the built-in table; the rows of `override` are tried first and so win.

    Raises `ConfigError` with the file and the path in it when a file is wrong.
    """
    own = load(override, _File).gpus if override is not None else []
    return PeakTable(
        gpus=_builtin(),
        own=tuple(_own(row, f"{override}: gpus.{number}") for number, row in enumerate(own)),
    )


@functools.cache
def _builtin() -> tuple[GpuPeak, ...]:
    text = files("perfd").joinpath("data", _NAME).read_text(encoding="utf-8")
    return tuple(parse(text, _File, name=_NAME).gpus)


def _own(row: GpuPeak, where: str) -> GpuPeak:
    flops = {precision.lower(): value for precision, value in row.flops.items()}
    for figure in row.unverified:
        if figure not in flops and figure not in _FIGURES:
            raise ConfigError(f"{where}.unverified: {figure!r} is not a figure of {row.name}.")
    return msgspec.structs.replace(row, flops=flops)
