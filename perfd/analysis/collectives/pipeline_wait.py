"""The pipeline's stall without timers: how long stages wait for each other's data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfd.analysis.collectives.nccl_summary import NcclSummary
from perfd.analysis.steps import Pipeline, Stage, bubble_theory_ratio
from perfd.model import ParallelLayout
from perfd.thresholds import THRESHOLDS

SOURCE_WAITING = "nccl plugin: waiting in sends and receives"


def with_waiting(
    measured: Pipeline, parallel: ParallelLayout, kernels: NcclSummary, step_s: float | None
) -> Pipeline:
    """What timers measured, or else the stall by waiting, if no rank is late: behind a slow rank all wait.

    Shares by waiting are of the whole step, not only of the schedule: what comes after it counts as a
    stage's own time.
    """
    costly_ratio = THRESHOLDS.straggler_certain_wait_ratio
    late = any((rank.gain_ratio or 0.0) >= costly_ratio for rank in kernels.ranks)
    known = len(kernels.stage_wait_ratios) == parallel.pp
    if measured.stall_ratio is not None or late or not known:
        return measured
    return _by_waiting(parallel, kernels.stage_wait_ratios, step_s)


def _by_waiting(
    parallel: ParallelLayout, stage_wait_ratios: Sequence[float], step_s: float | None
) -> Pipeline:
    theory = bubble_theory_ratio(parallel)
    stall = float(np.mean(stage_wait_ratios))
    # The stage that waits least has the most to do.
    imbalances = [wait - min(stage_wait_ratios) for wait in stage_wait_ratios]
    imbalance = float(np.mean(imbalances))
    return Pipeline(
        bubble_theory_ratio=theory,
        stall_ratio=stall,
        stages=[
            Stage(stage=number, stall_ratio=wait, compute_s=None, imbalance_ratio=imbalances[number])
            for number, wait in enumerate(stage_wait_ratios)
        ],
        source=SOURCE_WAITING,
        imbalance_ratio=imbalance,
        structural_ratio=stall - imbalance,
        excess_ratio=None if theory is None else stall - theory,
        window_s=step_s,
    )
