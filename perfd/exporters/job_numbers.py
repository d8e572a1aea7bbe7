"""The numbers of a job to plot over training steps, by name."""

from __future__ import annotations

from collections.abc import Iterable

from perfd.analysis.diagnosis import JobSummary
from perfd.exporters.exporter import JobRound


def job_numbers(job: JobRound) -> dict[str, float]:
    """All known numbers of the job. Names are stable; unknown values are omitted."""
    numbers = summary_numbers(job.summary)
    of_newest_step = {"loss": job.loss, "learning_rate": job.learning_rate}
    numbers |= {name: value for name, value in of_newest_step.items() if value is not None}
    return {name: value for name, value in numbers.items() if value == value}  # noqa: PLR0124  NaN is unknown.


def summary_numbers(summary: JobSummary) -> dict[str, float]:
    """The numbers of a summary by name; unknown values are omitted."""
    pipeline, breakdown = summary.pipeline, summary.breakdown
    gpus = summary.gpus
    numbers: dict[str, float | None] = {
        "mfu_ratio": summary.efficiency.mfu_ratio,
        "hfu_ratio": summary.efficiency.hfu_ratio,
        "mfu_upper_ratio": summary.efficiency.mfu_upper_ratio,
        "model_flops_per_s_per_gpu": summary.efficiency.model_flops_per_s_per_gpu,
        "step_time_s": summary.step_time_s.median,
        "step_time_p95_s": summary.step_time_s.p95,
        "step_time_jitter_ratio": summary.step_time_s.jitter_ratio,
        "tokens_per_s": summary.efficiency.tokens_per_s,
        "tokens_per_s_per_gpu": summary.efficiency.tokens_per_s_per_gpu,
        "samples_per_s": summary.efficiency.samples_per_s,
        "goodput_ratio": summary.goodput_ratio,
        "communication/share_ratio": summary.communication.share_ratio,
        "communication/exposed_ratio": summary.communication.exposed_ratio,
        "pipeline/stall_ratio": pipeline.stall_ratio,
        "pipeline/bubble_theory_ratio": pipeline.bubble_theory_ratio,
        "pipeline/excess_ratio": pipeline.excess_ratio,
        "breakdown/forward_ratio": breakdown.forward_ratio,
        "breakdown/backward_ratio": breakdown.backward_ratio,
        "breakdown/spread_ratio": breakdown.spread_ratio,
        "breakdown/unattributed_ratio": breakdown.unattributed_ratio,
        "breakdown/data_ratio": summary.data.share_ratio,
        "breakdown/optimizer_ratio": summary.optimizer.share_ratio,
        "memory/max_used_ratio": summary.memory.max_used_ratio,
        "gpu/sm_active_ratio": _mean(gpu.sm_active_ratio for gpu in gpus),
        "gpu/tensor_active_ratio": _mean(gpu.tensor_active_ratio for gpu in gpus),
        "gpu/dram_active_ratio": _mean(gpu.dram_active_ratio for gpu in gpus),
        "gpu/power_w": _mean(gpu.power_w for gpu in gpus),
    }
    return {name: value for name, value in numbers.items() if value is not None}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
