"""Work that changes with the data: sequences of unequal length make ranks late in turn.

What a micro-batch costs forward, it costs backward too, when its sequences are what makes it long. So
forward and backward times that go up and down together, over a wide range, are data; a slow machine is
slow in all of them. Correlation and spread as in the analysis of ByteDance-Seed's public timelines: 0.99
and 45 to 90% with unequal sequences, at most 0.90 and 7% in its other two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Floats
from perfd.analysis.data.robust_stats import median
from perfd.analysis.steps import BACKWARD, FORWARD, Timers
from perfd.analysis.stragglers.role_groups import peer_groups
from perfd.model import ParallelLayout
from perfd.thresholds import THRESHOLDS

_STEADY_RANK = 1.1
"""Of the median of all ranks: one whose median is above is itself slow, whatever its data. Chosen."""
_FEWEST = 20
"""Times of ranks in micro-batches; a correlation of fewer is not trusted. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnequalSequences:
    """How much the work of a step changes from rank to rank and from step to step."""

    correlation: float
    """Of forward and backward times."""
    spread_ratio: float
    """(p90 - p10) / median of forward times of peers."""
    lost_ratio: float
    """About how much of a step the ranks wait for the one that has the longest sequences in that step."""


def unequal_sequences(
    timers: Timers, step_time_s: Floats, parallel: ParallelLayout
) -> UnequalSequences | None:
    """Of forward and backward timers by rank; None when they are alike, or one rank is always the longest."""
    forward_name, backward_name = timers.first(FORWARD), timers.first(BACKWARD)
    forward = timers.by_rank_s(forward_name) if forward_name else None
    backward = timers.by_rank_s(backward_name) if backward_name else None
    if forward is None or backward is None:
        return None
    worst: UnequalSequences | None = None
    for peers in peer_groups(np.arange(forward.shape[1]), parallel):
        found = of_peers(forward[:, peers], backward[:, peers], step_time_s)
        if found is not None and (worst is None or found.lost_ratio > worst.lost_ratio):
            worst = found
    return worst


def of_peers(forward_s: Floats, backward_s: Floats, step_time_s: Floats) -> UnequalSequences | None:
    """The same for one group of peers: (steps, ranks), or (micro-batches, ranks) of any number of steps."""
    known = np.isfinite(forward_s) & np.isfinite(backward_s)
    if np.count_nonzero(known) < _FEWEST or not known.any(axis=0).all():
        return None
    compute = forward_s + backward_s
    lost = float(median((compute.max(axis=1) - median(compute, axis=1)) / step_time_s))
    by_rank = median(compute, axis=0)
    moves = float(by_rank.max()) <= _STEADY_RANK * float(np.median(by_rank))
    if not (lost >= THRESHOLDS.sequence_wait_ratio and moves):
        return None
    forward, backward = forward_s[known], backward_s[known]
    if not (forward.std() > 0 and backward.std() > 0):
        return None
    correlation = float(np.corrcoef(forward, backward)[0, 1])
    spread = min(_spread(forward), _spread(backward))
    if not (
        correlation >= THRESHOLDS.sequence_correlation_ratio and spread >= THRESHOLDS.sequence_spread_ratio
    ):
        return None
    return UnequalSequences(correlation=correlation, spread_ratio=spread, lost_ratio=lost)


def _spread(values: Floats) -> float:
    low, middle, high = np.percentile(values, [10, 50, 90])
    return float((high - low) / middle)
