"""From how many tokens on a GPU computes longer than it reads the weights that they meet."""

from __future__ import annotations

from dataclasses import dataclass

from perfd.analysis.data.job_data import JobData
from perfd.analysis.flops.gpu_peak_lookup import PeakTable, find_gpu, products_of
from perfd.analysis.steps.mfu import gpu_infos
from perfd.model import JobDescription

_WEIGHT_BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalBatch:
    """Of one micro-batch on one GPU; unknown values are None."""

    tokens: float | None = None
    """That meet each weight: of a mixture, those of an expert on average."""
    critical_tokens: float | None = None
    """From how many on a matrix product computes longer than it reads its weights."""


def critical_batch(
    job: JobData, peaks: PeakTable, precision: str | None, peak_flops_per_s: float | None
) -> CriticalBatch:
    """2 FLOPs a weight and token against the bytes of a weight: peak x bytes / (2 x bandwidth) tokens.

    Tensor and pipeline parallelism divide weights and work alike, context parallelism only the tokens.
    """
    return CriticalBatch(
        tokens=_tokens(job.description) if job.description else None,
        critical_tokens=_critical(job, peaks, precision, peak_flops_per_s),
    )


def _critical(
    job: JobData, peaks: PeakTable, precision: str | None, peak_flops_per_s: float | None
) -> float | None:
    kinds = {info.name for info in gpu_infos(job) if not info.mig}
    rates = [row.memory_bytes_per_s if (row := find_gpu(peaks, kind)) else None for kind in kinds]
    size = _WEIGHT_BYTES.get(products_of(precision)[0]) if precision else None
    slowest = min((rate for rate in rates if rate), default=None)
    if size is None or peak_flops_per_s is None or slowest is None or None in rates:
        return None
    return peak_flops_per_s * size / (2 * slowest)


def _tokens(described: JobDescription) -> float | None:
    layout, model = described.parallel, described.model
    if layout.micro_batch_size is None or model is None:
        return None
    tokens = layout.micro_batch_size * model.sequence_length / (layout.cp or 1)
    if model.moe is None:
        return tokens
    # The tokens of all ranks of an expert group spread over its experts.
    return tokens * (layout.ep or 1) * model.moe.top_k / model.moe.experts
