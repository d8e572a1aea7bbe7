"""Throughput, MFU and HFU of a job, and whether the log's own figure agrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfd.analysis.data.job_data import Floats, GpuKey, Ints, JobData
from perfd.analysis.data.robust_stats import known, median_of, ratio
from perfd.analysis.flops.flops_conventions import (
    FlopsConvention,
    job_recompute_flops_per_token,
    train_flops_per_token,
)
from perfd.analysis.flops.gpu_peak_lookup import GpuPeak, PeakTable, find_gpu, products_of
from perfd.analysis.flops.mfu_tier import MfuTier
from perfd.analysis.steps.activity_by_gpu import GpuActivity
from perfd.analysis.steps.flops_check import FlopsCheck, check_flops
from perfd.formatting import flops as flops_in_words
from perfd.model import GpuColumn, GpuInfo, JobDescription, Recompute, StepDoubt

_PARTS_RATIO = 1.25
"""Over what tensor cores allow: of a step in two parts, MFU would seem twice as high. Chosen."""
_PARTS = (
    "What repeats is only a part of a step: tensor cores are too little active for the FLOPs of whole ones."
    " Print the steps' numbers and times, or report steps with perfd.hook."
)

_MOST_RANKS = 65_536
"""That a launcher's word is believed for: as many as an aggregator takes of one job by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Medians over steady steps; None where a size, a time or a peak is unknown."""

    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    samples_per_s: float | None = None
    samples_per_s_per_gpu: float | None = None
    model_flops_per_s_per_gpu: float | None = None
    mfu_ratio: float | None = None
    mfu_tier: MfuTier | None = None
    hfu_ratio: float | None = None
    peak_flops_per_s: float | None = None
    """Dense, of one GPU; the mean when kinds are mixed."""
    peak_precision: str | None = None
    peak_precision_source: str | None = None
    """`set` if from perfd's configuration, `job` if from the job's log or arguments, `hlo` if it has the most
    FLOPs in the dumped HLO; None without a peak."""
    peak_unverified: bool = False
    """Whether no source confirms the peak that the table has for one of these GPUs."""
    flops_convention: str | None = None
    mfu_source: str | None = None
    """`shape` when perfd counted the operations of the model in the log, `config` and `arguments` of that in
    a `config.json` (`ModelSource`), `flops_per_step` when the operator did, `log` for the log's figure, `hlo`
    when they are counted in the job's dumped HLO."""
    mfu_missing: str | None = None
    """Why MFU is unknown, and what would give it; then the FLOPs of a step where these are known, but not of
    how many GPUs."""
    clock_adjusted_mfu_ratio: float | None = None
    """A diagnostic: against the peak at the clock that the GPUs ran at. Never an MFU."""
    tensor_active_ratio: float | None = None
    """GPM's tensor activity, the mean over GPUs: an independent check beside MFU."""
    mfu_upper_ratio: float | None = None
    """What MFU can be at most by that activity, at the clock that the GPUs ran at; None where products may
    run without tensor cores."""
    flops_check: FlopsCheck | None = None

    @property
    def precision_by_hlo(self) -> str | None:
        """Evidence in the HLO for the peak's precision, in words; None if it is from another source."""
        if self.peak_precision_source != "hlo":
            return None
        if self.peak_precision == "tf32":
            return "products of f32 in the dumped HLO, which XLA computes as TF32 by default"
        base, products = products_of(self.peak_precision or "")
        if products > 1:
            return f"products of f32 in the dumped HLO, each of {products} products of {base}"
        return f"products of {self.peak_precision} in the dumped HLO"


def efficiency(
    job: JobData,
    rows: Ints,
    activity: GpuActivity,
    *,
    convention: FlopsConvention,
    peaks: PeakTable,
    precision: str | None = None,
) -> Efficiency:
    """Derive throughput and utilization; `precision` overrides the job's own choice of the peak."""
    description = job.description
    world = world_size(job)
    samples_per_s = _samples_per_s(job, rows)
    tokens_per_s = _tokens_per_s(job, rows, samples_per_s)
    samples, tokens = median_of(samples_per_s), median_of(tokens_per_s)
    gpu_rows = _peak_rows(job, peaks)
    precision, precision_source = _precision(description, gpu_infos(job), gpu_rows, chosen=precision)
    peak = _mean([row.peak_flops_per_s(precision) if row and precision else None for row in gpu_rows])
    flops, label, source = _model_flops(job, rows, tokens_per_s, world, convention)
    clock = known(float(mean_over_gpus(activity, GpuColumn.SM_CLOCK)))
    clock_ratio = ratio(clock, _mean([row.peak_clock_hz if row else None for row in gpu_rows]))
    tensor = known(float(mean_over_gpus(activity, GpuColumn.TENSOR_ACTIVE)))
    working = known(float(mean_over_gpus(activity, GpuColumn.SM_ACTIVE)))
    bounded = not _may_lack_tensor_cores(precision, tensor, working, gpu_rows)
    upper = tensor * clock_ratio if tensor is not None and clock_ratio and bounded else None
    mfu, parts = ratio(flops, peak), False
    if mfu is not None and upper is not None and job.step_doubt is StepDoubt.MICRO_BATCHES:
        parts = mfu > _PARTS_RATIO * upper
    if parts:
        # What is computed from them is as many times too high.
        flops = mfu = tokens = samples = None
    missing = _PARTS if parts else _missing(job, rows, flops, precision, tokens)
    return Efficiency(
        tokens_per_s=tokens,
        tokens_per_s_per_gpu=ratio(tokens, world),
        samples_per_s=samples,
        samples_per_s_per_gpu=ratio(samples, world),
        model_flops_per_s_per_gpu=flops,
        mfu_ratio=mfu,
        mfu_tier=None if mfu is None else MfuTier.of(mfu),
        hfu_ratio=_hfu(description, mfu, source, convention),
        peak_flops_per_s=peak,
        peak_precision=precision if peak is not None else None,
        peak_precision_source=precision_source if peak is not None else None,
        peak_unverified=peak is not None
        and any(row is not None and precision and row.unverified_of(precision) for row in gpu_rows),
        flops_convention=label,
        mfu_source=source,
        mfu_missing=missing if mfu is None else None,
        clock_adjusted_mfu_ratio=ratio(mfu, clock_ratio),
        tensor_active_ratio=tensor,
        mfu_upper_ratio=upper,
        flops_check=check_flops(
            description, job.steps.flops_per_s_per_gpu[rows], tokens_per_s, world, chosen=convention
        ),
    )


def _may_lack_tensor_cores(
    precision: str | None, tensor: float | None, working: float | None, rows: Sequence[GpuPeak | None]
) -> bool:
    """Whether the job's products may run without tensor cores, by its precision.

    Where that is unknown, they may if active SMs could do as many in FP32 as the tensor cores did at most.
    """
    if precision is not None or tensor is None:
        return precision == "fp32"
    without = _mean([row.peak_flops_per_s("fp32") if row else None for row in rows])
    least = ratio(without, _mean([row.peak_flops_per_s("bf16") if row else None for row in rows]))
    return least is not None and tensor <= least * (1.0 if working is None else working)


def world_size(job: JobData) -> int | None:
    """How many GPUs share the job's work: what it said itself, else its launcher, else how many are seen.

    A launcher starts one process for each GPU, or one for several: then more GPUs are seen than it says. If
    ranks of GPUs are known, one without a rank is not of the job: all of a node are seen while processes end.
    """
    described = job.description.parallel.world_size if job.description else None
    gpus = job.gpu.gpus
    seen = sum(key.rank is not None for key in gpus) or len(gpus)
    return described or max(_launched_ranks(job), seen) or None


def _launched_ranks(job: JobData) -> int:
    """The ranks that the environment of all placed ones says; 0 where it says nothing, or ranks disagree."""
    said = {one.world_size for placed in job.placements.values() for one in placed}
    ranks = said.pop() if len(said) == 1 else None
    return ranks if ranks is not None and ranks <= _MOST_RANKS else 0


def gpu_infos(job: JobData) -> Sequence[GpuInfo]:
    """The GPUs that the job runs on, or all of its nodes when no sample says which."""
    if not job.used_gpus:
        job.used_gpus.append(_used_gpus(job))
    return job.used_gpus[0]


def _used_gpus(job: JobData) -> Sequence[GpuInfo]:
    infos = {(node, str(info.index)): info for node, found in job.gpu_infos.items() for info in found}
    used = [info for key in job.gpu.gpus if (info := infos.get((key.node, key.gpu)) or _slice_of(key, infos))]
    return used or list(infos.values())


def _slice_of(key: GpuKey, infos: Mapping[tuple[str, str], GpuInfo]) -> GpuInfo | None:
    index, _, part = key.gpu.partition("/")
    info = infos.get((key.node, index))
    return replace(info, mig=True) if info and part else None


def mean_over_gpus(activity: GpuActivity, metric: GpuColumn) -> float:
    """The mean over GPUs of their medians over steps, NaN if no GPU reports any."""
    values = activity.of_gpus(metric)
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else np.nan


def _samples_per_s(job: JobData, rows: Ints) -> Floats:
    batch = job.steps.global_batch_size[rows]
    described = job.description.parallel.global_batch_size if job.description else None
    batch = np.where(np.isfinite(batch), batch, np.nan if described is None else described)
    computed = batch / job.steps.step_time_s[rows]
    return np.where(np.isfinite(computed), computed, job.steps.samples_per_s[rows])


def _tokens_per_s(job: JobData, rows: Ints, samples_per_s: Floats) -> Floats:
    description = job.description
    tokens = job.steps.tokens_per_s[rows]
    if description is None:
        return tokens
    if description.model is not None:
        computed = samples_per_s * description.model.sequence_length
        # With a config.json the sequences may be padded, so what a log counts is better.
        first, second = (computed, tokens) if description.model_source is None else (tokens, computed)
        tokens = np.where(np.isfinite(first), first, second)
    if description.tokens_per_step is not None:
        tokens = description.tokens_per_step / job.steps.step_time_s[rows]
    return tokens


def _model_flops(
    job: JobData, rows: Ints, tokens_per_s: Floats, world: int | None, convention: FlopsConvention
) -> tuple[float | None, str | None, str | None]:
    """FLOP/s of one GPU, the label of its convention, and where it comes from."""
    description = job.description
    if description is not None and description.flops_per_step is not None and world:
        flops = median_of(description.flops_per_step / job.steps.step_time_s[rows] / world)
        if flops is not None:
            return flops, "as configured", "flops_per_step"
    if description is not None and description.model is not None and world:
        per_token = train_flops_per_token(description.model, convention)
        flops = median_of(tokens_per_s * (per_token / world))
        if flops is not None:
            return flops, convention.value, (description.model_source or "shape")
    logged = median_of(job.steps.flops_per_s_per_gpu[rows])
    if logged is not None:
        label = job.description.logged_flops_convention if job.description else None
        return logged, label or "as logged", "log"
    if description is not None and description.hlo_flops_per_step is not None and world:
        flops = median_of(description.hlo_flops_per_step / job.steps.step_time_s[rows] / world)
        if flops is not None:
            return flops, "with recomputation", "hlo"
    return None, None, None


def _missing(
    job: JobData, rows: Ints, flops: float | None, precision: str | None, tokens: float | None
) -> str | None:
    """The first of what MFU needs that is not there; None without step times, which other sentences say."""
    described = job.description
    if not len(rows) or median_of(job.steps.step_time_s[rows]) is None:
        return None
    shaped = described is not None and described.model is not None
    counted = None if flops is not None else _counted_in_words(described)
    if shaped and tokens is None and flops is None and counted is None:
        return "The tokens per step are unknown: set --tokens-per-step, or use perfd.hook."
    if flops is None and not shaped and counted is None:
        return (
            "The FLOPs per step are unknown: set --flops-per-step, or --model-config with tokens per step, or"
            " use perfd.hook."
        )
    if not gpu_infos(job) or flops is None:
        unshared = "How many GPUs share the job's work is unknown: no rank is seen on a GPU."
        reason = unshared if gpu_infos(job) else "No GPU is known."
        return reason if counted is None else f"{reason} {counted}"
    if precision is None:
        return "The data type of the matrix products is unknown: set --precision."
    names = ", ".join(sorted({info.name for info in gpu_infos(job)}))
    return f"No peak is known for {precision} on {names}."


def _counted_in_words(description: JobDescription | None) -> str | None:
    """The FLOPs of a step on all GPUs together, the configured ones first; None if unknown."""
    if description is None:
        return None
    if description.flops_per_step is not None:
        return f"A step has {flops_in_words(description.flops_per_step)} as configured."
    if description.hlo_flops_per_step is not None:
        return f"A step has {flops_in_words(description.hlo_flops_per_step)} by the dumped HLO."
    return None


def _hfu(
    description: JobDescription | None, mfu: float | None, source: str | None, convention: FlopsConvention
) -> float | None:
    if description is None or description.recompute is None or mfu is None:
        return None
    if description.recompute is Recompute.NONE:
        return mfu
    if description.model is None or source in {"log", "flops_per_step", "hlo"}:
        return None
    again = job_recompute_flops_per_token(description, description.model, convention)
    repeated = ratio(again, train_flops_per_token(description.model, convention))
    return None if repeated is None else mfu * (1 + repeated)


def _precision(
    description: JobDescription | None,
    infos: Sequence[GpuInfo],
    rows: Sequence[GpuPeak | None],
    *,
    chosen: str | None,
) -> tuple[str | None, str | None]:
    """The precision of the peak that MFU uses, and its source."""
    if chosen is not None:
        return chosen, "set"
    if description is None:
        return None, None
    if description.precision is not None:
        return description.precision, "job"
    found = description.hlo_precision
    # XLA does not use TF32 on AMD GPUs, and NVIDIA GPUs before Ampere lack it.
    if (
        found is not None
        and products_of(found)[0] == "tf32"
        and any(
            "amd" in info.name.lower() or (row is not None and "tf32" not in row.flops)
            for info, row in zip(infos, rows, strict=True)
        )
    ):
        found = "fp32"
    return found, None if found is None else "hlo"


def _peak_rows(job: JobData, peaks: PeakTable) -> list[GpuPeak | None]:
    """A slice of a GPU (MIG) has no peak of its own in the table."""
    infos = gpu_infos(job)
    rows = {name: find_gpu(peaks, name) for name in {info.name for info in infos}}
    return [None if info.mig else rows[info.name] for info in infos]


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean, or None when one is unknown."""
    if not values or any(value is None for value in values):
        return None
    return float(np.mean([value for value in values if value is not None]))
