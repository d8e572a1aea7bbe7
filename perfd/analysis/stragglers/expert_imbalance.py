"""Expert-parallel ranks whose experts get more tokens than the others': more work, on healthy hardware.

Ranks of one expert group have the same layers and batch, but for the tokens that the router sends to their
experts. So work that one has more of than its peers, step after step, is its experts'. Work is what tensor
cores did: the share of time that they were active times their clock, so that a slow GPU, which needs longer
for the same work, has none more. What it costs is computing time: of the time with any kernel that without
NCCL's, in which hardly any multiprocessor is active.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfd.analysis.data.job_data import Floats
from perfd.analysis.data.robust_stats import median
from perfd.analysis.steps import GpuActivity, LongerSteps
from perfd.model import GpuColumn, ParallelLayout
from perfd.thresholds import THRESHOLDS

NCCL_SM_RATIO = 0.15
"""Of the multiprocessors, those that NCCL's kernels occupy: 16 to 24 channels of 132."""
_MORE = 0.5
"""Of the time by which steps became longer, what the rank computes more, if it is why they did."""
_FEWEST_STEPS = 3
"""In which one rank has more work each time: by chance that is one of 64 of a group of four."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertImbalance:
    """The expert-parallel rank with the most work, compared with the mean of its group."""

    rank: int
    ranks: Sequence[int]
    """Its group."""
    work_ratio: float
    """Its work by the mean of the group's."""
    compute_ratio: float
    """The share of a step that it computes."""
    mean_compute_ratio: float
    """The same, the mean of the group."""
    persistence_ratio: float
    """The share of steps in which it has more than the mean by what is worth a name."""

    @property
    def gain_ratio(self) -> float:
        """What a step would be shorter by, at most, if all had the mean."""
        return self.compute_ratio - self.mean_compute_ratio


def expert_imbalance(
    activity: GpuActivity, parallel: ParallelLayout, longer: LongerSteps | None = None
) -> ExpertImbalance | None:
    """The rank of which that costs most; None without experts over ranks, or where work is alike.

    None also where steps became `longer` by work of that rank which the others of its group did not lose:
    the router gives away tokens, and makes none.
    """
    names = (GpuColumn.TENSOR_ACTIVE, GpuColumn.SM_ACTIVE, GpuColumn.GRAPHICS_ACTIVE)
    tensor, sm, kernels = (activity.metrics.get(name) for name in names)
    if (parallel.ep or 1) < 2 or tensor is None or sm is None:
        return None
    clock = activity.metrics.get(GpuColumn.SM_CLOCK)
    work = np.asarray(tensor, np.float64) * (1.0 if clock is None else np.nan_to_num(clock, nan=1.0))
    computing = _computing(sm, kernels)
    found = [
        one
        for columns in _groups(activity, parallel)
        if (one := _of_group(columns, activity, work, computing)) is not None
    ]
    most = max(found, key=lambda one: one.gain_ratio, default=None)
    return None if most is None or (longer is not None and _alone(most, longer)) else most


def _alone(found: ExpertImbalance, longer: LongerSteps) -> bool:
    """Whether that rank has more work since steps are longer, and its group not as much less."""
    own = longer.ranks == found.rank
    others = np.isin(longer.ranks, found.ranks) & ~own
    more = float(longer.computing_ratio[own].sum())
    return more >= _MORE and float(longer.computing_ratio[others].sum()) > -more / 2


def _computing(sm: NDArray[np.floating], kernels: NDArray[np.floating] | None) -> Floats:
    """The share of time in computing kernels, at least: as if these filled all multiprocessors."""
    if kernels is None:
        return np.asarray(sm, np.float64)
    # GPM's share of time with any kernel is read at a slow pace: its median stands for steps without.
    filled = np.where(np.isfinite(kernels), kernels, median(np.asarray(kernels, np.float64), axis=0))
    others = np.nan_to_num(filled) * NCCL_SM_RATIO
    return np.asarray(np.clip((sm - others) / (1 - NCCL_SM_RATIO), 0.0, 1.0), np.float64)


def _groups(activity: GpuActivity, parallel: ParallelLayout) -> list[list[int]]:
    """Columns of the GPUs of each expert group whose ranks are all seen."""
    tensor, experts = parallel.tp or 1, parallel.ep or 1
    groups: dict[tuple[int, int], list[int]] = {}
    for column, gpu in enumerate(activity.gpus):
        if gpu.rank is not None:
            groups.setdefault((gpu.rank // (tensor * experts), gpu.rank % tensor), []).append(column)
    return [columns for columns in groups.values() if len(columns) == experts]


def _of_group(
    columns: list[int], activity: GpuActivity, work: Floats, computing: Floats
) -> ExpertImbalance | None:
    own = work[:, columns]
    reported = np.isfinite(own).all(axis=1) & np.isfinite(computing[:, columns]).all(axis=1)
    if reported.sum() < _FEWEST_STEPS:
        return None
    own, times = own[reported], computing[reported][:, columns]
    by_mean = own / np.maximum(own.mean(axis=1, keepdims=True), 1e-12)
    usual = np.median(by_mean, axis=0)
    most = int(usual.argmax())
    least = 1 + THRESHOLDS.expert_imbalance_ratio
    persistence = float((by_mean[:, most] >= least).mean())
    if usual[most] < least or persistence < THRESHOLDS.expert_imbalance_persistence_ratio:
        return None
    ranks = [activity.gpus[column].rank for column in columns]
    found = ExpertImbalance(
        rank=ranks[most] or 0,
        ranks=tuple(rank for rank in ranks if rank is not None),
        work_ratio=float(usual[most]),
        compute_ratio=float(np.median(times[:, most])),
        mean_compute_ratio=float(np.median(times.mean(axis=1))),
        persistence_ratio=persistence,
    )
    return found if found.gain_ratio > 0 else None
