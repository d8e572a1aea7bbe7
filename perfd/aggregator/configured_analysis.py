"""The settings of the analysis, as configured."""

from __future__ import annotations

from pathlib import Path

from perfd.analysis.diagnosis import AnalysisSettings
from perfd.analysis.flops.flops_conventions import FlopsConvention
from perfd.config import AnalysisConfig
from perfd.errors import ConfigError
from perfd.gpu_peaks import load_peaks


def analysis_settings(config: AnalysisConfig) -> AnalysisSettings:
    """The analysis of whole jobs as configured; raises `ConfigError` with the key that is wrong."""
    try:
        convention = FlopsConvention(config.flops_convention)
    except ValueError:
        known = ", ".join(FlopsConvention)
        raise ConfigError(
            f"analysis.flops_convention: {config.flops_convention!r} is not one of {known}."
        ) from None
    peaks = load_peaks(Path(config.gpu_peaks_file) if config.gpu_peaks_file else None)
    return AnalysisSettings(
        convention=convention, peaks=peaks, network_bytes_per_s=config.network_bytes_per_s
    )
