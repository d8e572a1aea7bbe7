"""Since when a stage or rank computes longer: what changed while the job ran is not the design's fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Bools, Floats, Ints
from perfd.analysis.data.robust_stats import mean, median, sigma_of
from perfd.analysis.steps.phase_timers import Timers
from perfd.analysis.steps.pipeline_bubble import stage_of_ranks
from perfd.formatting import percent
from perfd.model import ParallelLayout
from perfd.thresholds import THRESHOLDS

_FEWEST = 5
"""Steps before and after: of fewer a median says little."""
_SIGMAS = 4.0
"""Of the spread around the levels. Chosen: one in 31,600 values of a normal distribution is above."""
_NEARLY = 0.5
"""Of the growth that is asked of medians, what means of the same steps must show at least."""
_NEWEST = 400
"""Steps that are looked at."""
_MOST_RANKS = 1024
"""Of larger jobs only stages are looked at, which bounds the cost of a look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeChange:
    """A stage, or a rank, that computes longer from some step on, while the others do not."""

    stage: int | None
    """None where one rank alone changed, or there are no stages."""
    rank: int | None
    ranks: Sequence[int]
    since_step: int
    growth_ratio: float
    """Median after by median before, less 1."""

    @property
    def who(self) -> str:
        """`stage 2`, `rank 5`."""
        return f"rank {self.rank}" if self.stage is None else f"stage {self.stage}"

    @property
    def sentence(self) -> str:
        """What changed, and since when."""
        longer = percent(self.growth_ratio)
        return (
            f"Since step {self.since_step} {self.who} computes {longer} longer than before,"
            " and the others do not (timers): something changed then."
        )


def compute_change(timers: Timers, steps: Ints, parallel: ParallelLayout) -> ComputeChange | None:
    """The stage or rank that changed most; None where none did, or timers are not by rank.

    `steps` are the numbers of the steps of `timers`. Timers that hold waiting for other ranks show nothing.
    """
    columns = None if timers.hold_waiting else timers.computing_by_rank_s()
    if columns is None:
        return None
    busy, numbers = (columns[0] + columns[1])[-_NEWEST:], steps[-_NEWEST:]
    stages = stage_of_ranks(np.arange(busy.shape[1]), parallel)
    of_rank = _changed(busy) if busy.shape[1] <= _MOST_RANKS else None
    if stages is not None and stages[-1] > 0 and len(stages) == busy.shape[1]:
        members = [np.flatnonzero(stages == stage) for stage in range(int(stages[-1]) + 1)]
        of_stage = _changed(np.stack([mean(busy[:, ranks], axis=1) for ranks in members], axis=1))
        if of_stage is not None:
            stage, row, growth = of_stage
            alone = of_rank is not None and len(members[stage]) > 1
            if not alone:
                ranks = tuple(members[stage].tolist())
                return ComputeChange(
                    stage=stage, rank=None, ranks=ranks, since_step=int(numbers[row]), growth_ratio=growth
                )
    if of_rank is None:
        return None
    rank, row, growth = of_rank
    return ComputeChange(
        stage=None, rank=rank, ranks=(rank,), since_step=int(numbers[row]), growth_ratio=growth
    )


def _changed(busy: Floats) -> tuple[int, int, float] | None:
    """The column that grew, the first row of its new level, and by what; None unless it grew alone."""
    found = [_grown(busy[:, column]) if may else None for column, may in enumerate(_may_have_grown(busy))]
    growths = np.array([0.0 if one is None else one[1] for one in found])
    column = int(growths.argmax()) if len(growths) else -1
    best = found[column] if column >= 0 else None
    if best is None or len(growths) < 2:
        return None
    row, growth = best
    others = np.delete(np.arange(len(growths)), column)
    beside = median(busy[row:][:, others], axis=0) / median(busy[:row][:, others], axis=0) - 1
    if not np.isfinite(beside).any() or np.nanmax(beside) > growth / 2:
        return None
    return column, row, growth


def _may_have_grown(busy: Floats) -> Bools:
    """Columns of which some later part is longer on average, as few are: to look at each closely is slow."""
    if len(busy) < 2 * _FEWEST:
        return np.zeros(busy.shape[1], dtype=np.bool_)
    known = np.nan_to_num(busy)
    counts = np.cumsum(np.isfinite(busy), axis=0)
    summed = np.cumsum(known, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        before = summed[:-1] / counts[:-1]
        after = (summed[-1] - summed[:-1]) / (counts[-1] - counts[:-1])
        return np.asarray((after >= (1 + _NEARLY * THRESHOLDS.straggler_slowdown_ratio) * before).any(axis=0))


def _grown(times: Floats) -> tuple[int, float] | None:
    """The row from which one column is longer, and by what part; None where it is not, for good."""
    rows = np.flatnonzero(np.isfinite(times))
    known = times[rows]
    count = len(known)
    if count < 2 * _FEWEST:
        return None
    splits = np.arange(2, count - 1)
    summed = np.cumsum(known)
    after = (summed[-1] - summed[splits - 1]) / (count - splits)
    score = (after - summed[splits - 1] / splits) * np.sqrt(splits * (count - splits) / count)
    split = int(splits[score.argmax()])
    if min(split, count - split) < _FEWEST:
        return None
    before_s, after_s = float(np.median(known[:split])), float(np.median(known[split:]))
    levels = np.where(np.arange(count) < split, before_s, after_s)
    least_s = max(THRESHOLDS.straggler_slowdown_ratio * before_s, _SIGMAS * (sigma_of(known - levels) or 0.0))
    if before_s <= 0 or after_s - before_s < least_s:
        return None
    return int(rows[split]), after_s / before_s - 1
