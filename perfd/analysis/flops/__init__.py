"""FLOPs of a training step from the model's shape, and the peaks of GPUs."""

from perfd.analysis.flops.flops_conventions import (
    FlopsConvention,
    job_recompute_flops_per_token,
    train_flops_per_token,
)
from perfd.analysis.flops.model_shape import parameter_counts
from perfd.analysis.flops.peak_table import GpuPeak, PeakTable, find_gpu, find_peak

__all__ = [
    "FlopsConvention",
    "GpuPeak",
    "PeakTable",
    "find_gpu",
    "find_peak",
    "job_recompute_flops_per_token",
    "parameter_counts",
    "train_flops_per_token",
]
