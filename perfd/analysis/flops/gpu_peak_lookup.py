"""Which dense peak a GPU has, by the name that NVML gives it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

_MOST_KEPT = 4096
"""Comparisons of names that are kept: a fleet has few kinds of GPUs, which are looked up all the time."""
_SEVERAL_PRODUCTS = re.compile(r"(\w+?)_x([1-9])")
_VENDORS = frozenset({"nvidia", "amd", "tesla", "instinct", "geforce", "google"})


class GpuPeak(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one kind of GPU can do at best, per GPU: a row of the file. What is not stated is None."""

    name: str
    match: Sequence[str]
    """Parts of NVML's name, each on word boundaries, so that `A10` is not in `A100`; case is ignored."""
    flops: Mapping[str, float]
    """Dense operations a second, without sparsity, by precision: bf16, fp16, fp8, fp4, int8, tf32, fp32."""
    called: Sequence[str] = ()
    """What else people call it, as a whole: `A100` is the board of 80 GB."""
    memory_bytes: float | None = None
    memory_bytes_per_s: float | None = None
    nvlink_bytes_per_s: float | None = None
    """Sum of both directions."""
    pcie_bytes_per_s: float | None = None
    """Sum of both directions."""
    peak_clock_hz: float | None = None
    """The SM clock at which `flops` holds; a GPU that boosts higher can pass its own peak."""
    source: str
    checked: Sequence[str] = ()
    """Pages on which its figures were read."""
    unverified: Sequence[str] = ()
    """Figures that none of these confirms: precisions of `flops`, and fields of this row."""
    date: str
    """When the row was written down, as YYYY-MM-DD."""

    def peak_flops_per_s(self, precision: str) -> float | None:
        """Of dense products at a precision; of `bf16_x3` a third of bf16's peak. None if it is unknown."""
        base, products = products_of(precision)
        peak = self.flops.get(base)
        return None if peak is None else peak / products

    def unverified_of(self, *figures: str) -> tuple[str, ...]:
        """Which of these figures are unverified."""
        return tuple(figure for figure in figures if products_of(figure)[0] in self.unverified)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakTable:
    """Rows in the order in which they are tried: the first that matches wins."""

    gpus: Sequence[GpuPeak] = field(default_factory=tuple)
    """The rows that ship."""
    own: Sequence[GpuPeak] = ()
    """An operator's, which win over those."""


def find_gpu(table: PeakTable, name: str) -> GpuPeak | None:
    """The row of a GPU by NVML's name, the row's own, or another that it is called by; None if unknown."""
    plain = _plain(name)
    for rows in (table.own, table.gpus):
        called = (row for row in rows if plain in {_plain(one) for one in (row.name, *row.called)})
        matched = (row for row in rows if any(_names(part, name) for part in row.match))
        found = next(called, None) or next(matched, None)
        if found is not None:
            return found
    return None


def find_peak(table: PeakTable, nvml_name: str, precision: str | None) -> float | None:
    """Dense operations a second of a GPU at a precision, or None when either is unknown."""
    row = find_gpu(table, nvml_name)
    return row.peak_flops_per_s(precision.lower()) if row and precision else None


def products_of(precision: str) -> tuple[str, int]:
    """The precision that the GPU computes with, and how many of its products make one.

    XLA's algorithms such as BF16_BF16_F32_X3 split each f32 operand and add 3, 6 or 9 products.
    """
    found = _SEVERAL_PRODUCTS.fullmatch(precision)
    return (found[1], int(found[2])) if found else (precision, 1)


@lru_cache(maxsize=_MOST_KEPT)
def _names(part: str, nvml_name: str) -> bool:
    boundaries = rf"(?<![A-Za-z0-9]){re.escape(part)}(?![A-Za-z0-9])"
    return re.search(boundaries, nvml_name, re.IGNORECASE) is not None


@lru_cache(maxsize=_MOST_KEPT)
def _plain(name: str) -> str:
    """A name without what people write in different ways: case, spaces, hyphens, and the vendor."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return "".join(word for word in words if word not in _VENDORS)
