"""Where an operation stands under the roofline of its GPU.

A kernel that does F operations and moves B bytes takes at least max(F / peak, B / bandwidth). Which of
the two it is depends on its intensity F / B against the ridge, peak / bandwidth. (Source: Williams,
Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from perfd.analysis.flops.gpu_peak_lookup import GpuPeak
from perfd.errors import PerfdError

AT_LIMIT_RATIO = 0.80
LATENCY_RATIO = 0.60
"""Nsight Compute's own bounds: above 80% a unit is at its limit, below 60% of both neither limits."""
SHORT_S = 10e-6
"""What needs no longer than this at best is over before the GPU is full: launching a kernel alone takes some
microseconds."""


class RooflineVerdict(StrEnum):
    """What limits an operation."""

    COMPUTE = "compute_bound"
    MEMORY = "memory_bound"
    LATENCY = "latency_bound"
    """Neither unit is busy: too little parallelism, or waiting for something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationWork:
    """What an operation does at least, each input read and each output written once."""

    name: str
    flops: float
    traffic_bytes: float
    precision: str
    """Whose dense peak applies: bf16, fp16, fp8, fp4, tf32, fp32."""
    notes: tuple[str, ...] = ()
    arrays: tuple[tuple[str, str, str, str], ...] = ()
    """For HLO: each array with its memory order, tiles and memory space, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """An operation under its GPU's roofline. None where no time was measured."""

    work: OperationWork
    gpu: str
    peak_flops_per_s: float
    memory_bytes_per_s: float
    intensity_flops_per_byte: float
    ridge_flops_per_byte: float
    attainable_flops_per_s: float
    """The roof over its intensity."""
    minimum_s: float
    """No faster than this on that GPU."""
    side: RooflineVerdict
    """Which roof it is under: compute or memory."""
    unverified: Sequence[str] = ()
    """The GPU's figures among these that no source confirms: the precision, or `memory_bytes_per_s`."""
    time_s: float | None = None
    peak_ratio: float | None = None
    bandwidth_ratio: float | None = None
    attainable_ratio: float | None = None
    verdict: RooflineVerdict
    at_limit: bool | None = None

    @property
    def peak_label(self) -> str:
        """What the peak is, in words."""
        unverified = ", unverified" if self.work.precision in self.unverified else ""
        return f"{self.work.precision}, dense{unverified}"

    @property
    def bandwidth_label(self) -> str:
        """What follows the bandwidth where no source confirms it."""
        return " (unverified)" if "memory_bytes_per_s" in self.unverified else ""


def place(work: OperationWork, gpu: GpuPeak, time_s: float | None = None) -> Placement:
    """Put an operation under the roofline of a GPU, and say what limits it.

    Raises `PerfdError` when the table does not know the peak or the bandwidth.
    """
    peak, bandwidth = gpu.peak_flops_per_s(work.precision), gpu.memory_bytes_per_s
    if peak is None or bandwidth is None:
        missing = "memory bandwidth" if bandwidth is None else f"{work.precision} peak"
        raise PerfdError(f"The table of peaks has no {missing} of {gpu.name}; add a row with --peaks.")
    if work.traffic_bytes <= 0 or (time_s is not None and not 0 < time_s < math.inf):
        raise PerfdError("An operation moves more than 0 bytes and takes more than 0 seconds.")
    minimum = max(work.flops / peak, work.traffic_bytes / bandwidth)
    side = (
        RooflineVerdict.COMPUTE
        if work.flops / peak >= work.traffic_bytes / bandwidth
        else RooflineVerdict.MEMORY
    )
    peak_ratio = work.flops / time_s / peak if time_s else None
    bandwidth_ratio = work.traffic_bytes / time_s / bandwidth if time_s else None
    attainable_ratio = minimum / time_s if time_s else None
    # A time alone does not separate idle units from badly used ones, unless there is too little work for any.
    short = attainable_ratio is not None and attainable_ratio < LATENCY_RATIO and minimum < SHORT_S
    return Placement(
        work=work,
        gpu=gpu.name,
        peak_flops_per_s=peak,
        memory_bytes_per_s=bandwidth,
        intensity_flops_per_byte=work.flops / work.traffic_bytes,
        ridge_flops_per_byte=peak / bandwidth,
        attainable_flops_per_s=work.flops / minimum,
        minimum_s=minimum,
        side=side,
        unverified=gpu.unverified_of(work.precision, "memory_bytes_per_s"),
        time_s=time_s,
        peak_ratio=peak_ratio,
        bandwidth_ratio=bandwidth_ratio,
        attainable_ratio=attainable_ratio,
        verdict=RooflineVerdict.LATENCY if short else side,
        at_limit=None if attainable_ratio is None else attainable_ratio >= AT_LIMIT_RATIO,
    )


def matmul(m: int, n: int, k: int, dtype: str, *, batch: int = 1) -> OperationWork:
    """A product of an m x k and a k x n matrix, as often as the batch is large.

    Raises `PerfdError` for a size below 1 or a dtype that is not known.
    """
    if min(m, n, k, batch) < 1:
        raise PerfdError("The sizes of a matrix product must be at least 1.")
    width = bytes_of(dtype)
    return OperationWork(
        name=f"matmul {f'{batch} x ' if batch > 1 else ''}{m} x {n} x {k} {dtype}",
        flops=2.0 * batch * m * n * k,
        traffic_bytes=batch * (m * k + k * n + m * n) * width,
        precision=matmul_precision(dtype),
    )


_DTYPES = {
    "bf16": (2.0, "bf16"),
    "f16": (2.0, "fp16"),
    "fp16": (2.0, "fp16"),
    "f32": (4.0, "tf32"),
    "fp32": (4.0, "tf32"),
    "tf32": (4.0, "tf32"),
    "f8e4m3fn": (1.0, "fp8"),
    "f8e5m2": (1.0, "fp8"),
    "f8e4m3": (1.0, "fp8"),
    "fp8": (1.0, "fp8"),
    "f4e2m1fn": (0.5, "fp4"),
    "fp4": (0.5, "fp4"),
    "f64": (8.0, "fp64"),
    "s4": (0.5, "int4"),
    "u4": (0.5, "int4"),
    "s8": (1.0, "int8"),
    "int8": (1.0, "int8"),
    "u8": (1.0, "int8"),
    "pred": (1.0, "int8"),
    "s16": (2.0, "int16"),
    "u16": (2.0, "int16"),
    "s32": (4.0, "int32"),
    "u32": (4.0, "int32"),
    "s64": (8.0, "int64"),
    "u64": (8.0, "int64"),
    "c64": (8.0, "fp32"),
    "c128": (16.0, "fp64"),
}


def bytes_of(dtype: str) -> float:
    """How wide an element is; raises `PerfdError` for a dtype that is not known."""
    return _row(dtype)[0]


def matmul_precision(dtype: str) -> str:
    """Whose peak a matrix product of that dtype is held against: fp32 runs on tensor cores as tf32."""
    return _row(dtype)[1]


def vector_precision(dtype: str) -> str:
    """Whose peak other work is held against: outside the tensor cores that is fp32's, whatever the dtype."""
    _row(dtype)
    return "fp32"


def _row(dtype: str) -> tuple[float, str]:
    if dtype.lower() not in _DTYPES:
        raise PerfdError(f"unknown dtype {dtype!r}; known: {', '.join(sorted(_DTYPES))}.")
    return _DTYPES[dtype.lower()]
