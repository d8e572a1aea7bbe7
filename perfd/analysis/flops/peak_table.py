"""Which dense peak a GPU has, by the name that NVML gives it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPeak:
    """What one kind of GPU can do at best, per GPU. What a vendor does not state is None."""

    name: str
    match: Sequence[str]
    """Parts of NVML's name, each on word boundaries, so that `A10` is not in `A100`; case is ignored."""
    flops: Mapping[str, float]
    """Dense operations a second, without sparsity, by precision: bf16, fp16, fp8, fp4, tf32, fp32."""
    memory_bytes: float | None = None
    memory_bytes_per_s: float | None = None
    nvlink_bytes_per_s: float | None = None
    """Sum of both directions."""
    peak_clock_hz: float | None = None
    """The SM clock at which `flops` holds; a GPU that boosts higher can pass its own peak."""
    source: str
    date: str
    """When the row was written down from its source, as YYYY-MM-DD."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakTable:
    """Rows in the order in which they are tried: the first that matches wins."""

    gpus: Sequence[GpuPeak] = field(default_factory=tuple)


def find_gpu(table: PeakTable, nvml_name: str) -> GpuPeak | None:
    """The row of a GPU, or None when the table does not know it."""
    return next((row for row in table.gpus if any(_names(part, nvml_name) for part in row.match)), None)


def find_peak(table: PeakTable, nvml_name: str, precision: str | None) -> float | None:
    """Dense operations a second of a GPU at a precision, or None when either is unknown."""
    row = find_gpu(table, nvml_name)
    return row.flops.get(precision.lower()) if row and precision else None


def _names(part: str, nvml_name: str) -> bool:
    boundaries = rf"(?<![A-Za-z0-9]){re.escape(part)}(?![A-Za-z0-9])"
    return re.search(boundaries, nvml_name, re.IGNORECASE) is not None
