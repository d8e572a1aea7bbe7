"""How derived numbers are defined, where a job does not say."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfd.analysis.flops.flops_conventions import FlopsConvention
from perfd.analysis.flops.gpu_peak_lookup import PeakTable


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisSettings:
    """How derived numbers are defined, apart from the job."""

    convention: FlopsConvention = FlopsConvention.MEGATRON
    peaks: PeakTable = field(default_factory=PeakTable)
    window_steps: int | None = None
    """The newest so many steady steps that medians are over; None for all."""
    peak_precision: str | None = None
    """The precision whose peak MFU is measured against; None for the job's own."""
    network_bytes_per_s: float | None = None
    """One direction of a GPU's share of the network between nodes; the ring formula needs it."""
