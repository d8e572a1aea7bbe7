"""Records without sizes that cannot be: where a job or driver says zero, nothing is known."""

from __future__ import annotations

import dataclasses
import math

from perfd.model import GpuInfo, JobDescription, ModelShape, ParallelLayout, RankPlacement

_SIZES = ("layers", "hidden_size", "attention_heads", "sequence_length")


def plausible_gpu(info: GpuInfo) -> GpuInfo:
    """The GPU, without a memory or a clock of zero."""
    return dataclasses.replace(
        info,
        memory_bytes=info.memory_bytes or None,
        max_sm_clock_hz=_positive(info.max_sm_clock_hz),
    )


def plausible_placement(placement: RankPlacement) -> RankPlacement:
    """The placement, without a world of no ranks."""
    return dataclasses.replace(placement, world_size=placement.world_size or None)


def plausible_description(description: JobDescription) -> JobDescription:
    """The description, without groups of no ranks and without a model that lacks a dimension."""
    model = description.model
    return dataclasses.replace(
        description,
        parallel=plausible_layout(description.parallel),
        model=model if model is not None and _has_sizes(model) else None,
        log_interval_steps=description.log_interval_steps or None,
        parameters=_positive(description.parameters),
        tokens_per_step=_positive(description.tokens_per_step),
        flops_per_step=_positive(description.flops_per_step),
        hlo_flops_per_step=_positive(description.hlo_flops_per_step),
    )


def plausible_layout(layout: ParallelLayout) -> ParallelLayout:
    """The layout, without sizes of zero."""
    sizes = {field.name: getattr(layout, field.name) or None for field in dataclasses.fields(layout)}
    return ParallelLayout(**sizes)


def _has_sizes(model: ModelShape) -> bool:
    experts = model.moe is None or (model.moe.experts > 0 and model.moe.top_k > 0)
    return experts and all(getattr(model, name) for name in _SIZES)


def _positive(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and value > 0 else None
