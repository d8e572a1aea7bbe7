"""Whether the FLOP/s that a log prints are those that perfd computes from the model's shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Floats
from perfd.analysis.data.robust_stats import median, median_of
from perfd.analysis.flops.flops_conventions import (
    FlopsConvention,
    job_recompute_flops_per_token,
    train_flops_per_token,
)
from perfd.model import JobDescription, ModelShape

_AGREEMENT_RATIO = 0.005
"""Relative difference that the rounding of a log can make. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsCheck:
    """The FLOP/s that the log prints against those that perfd computes by the same convention."""

    logged_flops_per_s_per_gpu: float
    computed_flops_per_s_per_gpu: float
    convention: str
    agrees: bool
    finding: str | None = None
    """One sentence when they differ."""


def check_flops(
    description: JobDescription | None,
    logged: Floats,
    tokens_per_s: Floats,
    world: int | None,
    *,
    chosen: FlopsConvention,
) -> FlopsCheck | None:
    """Compare steady steps by the convention that the log is known to use, else by the chosen one.

    None when the log prints no FLOP/s or the shape is unknown.
    """
    if description is None or description.model is None or not world:
        return None
    per_token = median_of(logged * world / tokens_per_s)
    if per_token is None:
        return None
    convention = FlopsConvention.of_label(description.logged_flops_convention) or chosen
    computed = train_flops_per_token(description.model, convention)
    agrees = _agree(per_token, computed)
    both = np.isfinite(logged * tokens_per_s)
    return FlopsCheck(
        logged_flops_per_s_per_gpu=float(median(logged[both])),
        computed_flops_per_s_per_gpu=float(median(tokens_per_s[both])) * computed / world,
        convention=convention.value,
        agrees=agrees,
        finding=None if agrees else _finding(description, description.model, per_token, convention),
    )


def _agree(one: float, other: float) -> bool:
    return abs(one / other - 1) <= _AGREEMENT_RATIO


def _finding(
    description: JobDescription, shape: ModelShape, per_token: float, convention: FlopsConvention
) -> str:
    off = per_token / train_flops_per_token(shape, convention) - 1
    start = f"The log's FLOP/s are {off:+.1%} off what perfd computes by the {convention.value} convention"
    for other in FlopsConvention:
        model = train_flops_per_token(shape, other)
        if _agree(per_token, model):
            return f"{start}; they agree with the convention {other.value}."
        if _agree(per_token, model + job_recompute_flops_per_token(description, shape, other)):
            return f"{start}; they agree with {other.value} plus recomputation, which is HFU and not MFU."
    return f"{start}, and no convention that perfd knows explains it: check the model's sizes and the batch."
