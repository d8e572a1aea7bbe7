"""Which rank the others wait for: by timers of each rank, or by what its GPU does while theirs wait.

Only peers are compared: ranks of one role, which have the same work.
A rank is named when it differs in size, in persistence and beyond the scatter
of its own steps; where a peer is missing, no rank is named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from perfd.analysis.data.job_data import Bools, Floats, Ints
from perfd.analysis.data.robust_stats import MAD_TO_SIGMA, MEDIAN_ERROR, median
from perfd.analysis.layout import roles_of
from perfd.analysis.steps import STEADY_STEPS, TRAINING_TIME, GpuActivity, Timers, stage_of_ranks
from perfd.model import GpuColumn, ParallelLayout
from perfd.thresholds import THRESHOLDS

_FEWEST_STEPS = 5
_FEWEST_SAMPLED_STEPS = 10
"""Of several nodes: their clocks differ by seconds, so the first samples may be of starting up."""
_SIGMAS = 3.0
_MAD_FLOOR = 0.005
"""Timers and GPM are no more exact than this."""
_SMALL_GROUP = 8
_MAJORITY = 3
"""With so many peers the one that differs from the others is known."""


class Pattern(StrEnum):
    """How a rank differs from its peers."""

    SLOW_COMPUTE = "slow_compute"
    """Its forward and backward take longer, by its own timers."""
    BUSY_LONGER = "busy_longer"
    """Its GPU computes while those of its peers sit in small NCCL kernels: more or slower work."""
    IDLE = "idle"
    """Its GPU is idle while those of its peers wait for it in NCCL kernels: the host keeps it waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """One rank that its peers wait for."""

    rank: int
    pattern: Pattern
    ratio: float
    """Its compute time or activity by that of its peers; for an idle GPU 1 plus what it is less active."""
    wait_ratio: float
    """About how much of a step the peers wait for it."""
    persistence_ratio: float
    """Of the steps, those in which it differs so."""
    peers: Sequence[int]
    source: str


@dataclass(frozen=True, slots=True)
class _Differences:
    """For each peer: whether it stands out, its median ratio, and in how many of the steps it does."""

    flagged: Bools
    ratio: Floats
    persistence: Floats


def stragglers_by_timers(
    timers: Timers, step_time_s: Floats, parallel: ParallelLayout
) -> tuple[Straggler, ...]:
    """Ranks whose compute is 10% over the median of their peers and costs them 5% of the step.

    Where phases may hold waiting, of two ranks none is named: the longer phase may be the waiting one's.
    """
    phases = timers.computing_by_rank_s()
    if phases is None:
        return ()
    forward, backward = phases
    found = []
    hold_waiting = timers.hold_waiting
    for peers in peer_groups(np.arange(forward.shape[1]), parallel):
        own = forward[:, peers] + backward[:, peers]
        if not np.isfinite(own).any(axis=0).all() or (hold_waiting and len(peers) < _MAJORITY):
            continue
        typical = _others(own)
        if hold_waiting:
            typical = typical - _waited_for(forward[:, peers], backward[:, peers])
        difference = _differences(_relative(own, typical), _FEWEST_STEPS)
        waits = median((own - typical) / step_time_s[:, None], axis=0)
        flagged = difference.flagged & (waits >= THRESHOLDS.straggler_wait_ratio)
        found += _named(flagged, peers, difference, waits, pattern=Pattern.SLOW_COMPUTE)
    return tuple(sorted(found, key=lambda straggler: -straggler.wait_ratio))


def _waited_for(forward: Floats, backward: Floats) -> Floats:
    """How long the others wait for each peer in backward; no more than its forward is longer than theirs."""
    longer, shorter = forward - _others(forward), _others(backward) - backward
    return np.maximum(np.minimum(longer, shorter), 0.0)


def stragglers_by_activity(activity: GpuActivity, parallel: ParallelLayout) -> tuple[Straggler, ...]:
    """Ranks whose GPU keeps computing, or keeps idling, while their peers wait.

    Waiting in an NCCL kernel occupies a few SMs and no tensor core. So a rank
    with more work, or with a slower clock, shows more tensor and SM activity than
    its peers over the same steps, and one that its host keeps waiting shows less
    activity of any kind.
    """
    ranks = _ranks(activity)
    if activity.source != STEADY_STEPS or ranks is None:
        return ()
    found: list[Straggler] = []
    for peers in peer_groups(ranks, parallel):
        found += _busy_longer(activity, peers, ranks)
        found += _idle(activity, peers, ranks)
    return tuple(sorted(found, key=lambda straggler: -straggler.wait_ratio))


def undecided_by_activity(activity: GpuActivity, parallel: ParallelLayout) -> bool:
    """Whether GPUs of all peers are read that may yet show who is slow, but in too few steps so far."""
    ranks = _ranks(activity)
    if activity.source == TRAINING_TIME or ranks is None or not peer_groups(ranks, parallel):
        return False
    tensor = activity.metrics.get(GpuColumn.TENSOR_ACTIVE)
    sampled = activity.metrics.get(activity.kernel_metric) if tensor is None else tensor
    if sampled is None:
        return activity.source is None
    # By the median GPU: one that is never read shows nothing, however long it is waited for.
    return bool(np.median(np.isfinite(sampled).sum(axis=0)) < _fewest_sampled_steps(activity))


def seen_idle_ratio(activity: GpuActivity, parallel: ParallelLayout) -> float | None:
    """How much more of the time than its peers' the idlest GPU runs no kernel; None where one is not seen."""
    return _most(activity, parallel, activity.kernel_metric, _idler)


def seen_busier_ratio(activity: GpuActivity, parallel: ParallelLayout) -> float | None:
    """How much more than its peers' the tensor cores, or SMs, of the busiest GPU are active, by theirs."""
    found = [
        _most(activity, parallel, unit, _busier) for unit in (GpuColumn.TENSOR_ACTIVE, GpuColumn.SM_ACTIVE)
    ]
    known = [ratio for ratio in found if ratio is not None]
    return max(known) if len(known) == len(found) else None


def _most(
    activity: GpuActivity, parallel: ParallelLayout, metric: GpuColumn, differing: Callable[[Floats], Floats]
) -> float | None:
    """The largest over all GPUs of the median over steps of how one differs from its peers."""
    ranks = _ranks(activity)
    if activity.source != STEADY_STEPS or ranks is None:
        return None
    groups = peer_groups(ranks, parallel)
    values = [_of_peers(activity, metric, peers) for peers in groups]
    fewest = _fewest_sampled_steps(activity)
    reported = [one for one in values if one is not None and np.isfinite(one).sum(axis=0).min() >= fewest]
    if not reported or len(reported) < len(groups):
        return None
    return max(float(median(differing(one), axis=0).max()) for one in reported)


def _idler(active: Floats) -> Floats:
    return _others(active) - active


def _busier(active: Floats) -> Floats:
    return _relative(active, _others(active)) - 1


def peer_groups(ranks: Ints, parallel: ParallelLayout) -> list[Ints]:
    """Positions of the ranks of each role; none when the layout is unknown or a rank is missing."""
    stages = stage_of_ranks(ranks, parallel)
    if stages is None or len(ranks) != parallel.world_size:
        return []
    roles = roles_of(ranks, stages, parallel)
    groups = [np.flatnonzero(roles == role) for role in np.unique(roles)]
    return [group for group in groups if len(group) > 1]


def _ranks(activity: GpuActivity) -> Ints | None:
    """The rank of each GPU; None when one is unknown, or two are the same."""
    ranks = np.array([-1 if key.rank is None else key.rank for key in activity.gpus], dtype=np.int64)
    return None if (ranks < 0).any() or len(set(ranks.tolist())) != len(ranks) else ranks


def _fewest_sampled_steps(activity: GpuActivity) -> int:
    one_clock = len({key.node for key in activity.gpus}) == 1
    return _FEWEST_STEPS if one_clock else _FEWEST_SAMPLED_STEPS


def _busy_longer(activity: GpuActivity, peers: Ints, ranks: Ints) -> list[Straggler]:
    tensor = _of_peers(activity, GpuColumn.TENSOR_ACTIVE, peers)
    streaming = _of_peers(activity, GpuColumn.SM_ACTIVE, peers)
    if tensor is None or streaming is None:
        return []
    difference = _differences(_relative(tensor, _others(tensor)), _fewest_sampled_steps(activity))
    # What the peers' SMs do not do and the rank's do is their waiting, a little less than all of it.
    waits = median(1 - _relative(_others(streaming), streaming), axis=0)
    flagged = difference.flagged & (waits >= THRESHOLDS.straggler_wait_ratio)
    return _named(flagged, ranks[peers], difference, waits, pattern=Pattern.BUSY_LONGER)


def _idle(activity: GpuActivity, peers: Ints, ranks: Ints) -> list[Straggler]:
    active = _of_peers(activity, activity.kernel_metric, peers)
    if active is None:
        return []
    missing = _idler(active)
    difference = _differences(1 + missing, _fewest_sampled_steps(activity))
    waits = median(missing, axis=0)
    return _named(difference.flagged, ranks[peers], difference, waits, pattern=Pattern.IDLE)


def _of_peers(activity: GpuActivity, metric: GpuColumn, peers: Ints) -> Floats | None:
    """Steps by peers, or None if one of them is missing: then no rank can be named."""
    values = activity.metrics.get(metric)
    if values is None:
        return None
    chosen = np.asarray(values[:, peers], dtype=np.float64)
    return chosen if np.isfinite(chosen).any(axis=0).all() else None


def _others(values: Floats) -> Floats:
    """For each peer, the median of the others in each step."""
    if values.shape[1] <= _SMALL_GROUP:
        columns = [median(np.delete(values, index, axis=1), axis=1) for index in range(values.shape[1])]
        return np.stack(columns, axis=1)
    # In a larger group one member does not move the median by much.
    return np.broadcast_to(median(values, axis=1)[:, None], values.shape)


def _relative(values: Floats, reference: Floats) -> Floats:
    """By the reference, absent where that is nothing to compare with."""
    return values / np.where(reference > 0, reference, np.nan)


def _differences(ratios: Floats, fewest: int) -> _Differences:
    """Flags peers over the least slowdown, beyond their own scatter, in most of at least `fewest` steps."""
    steps = np.maximum(np.isfinite(ratios).sum(axis=0), 1)
    middle = median(ratios, axis=0)
    mad = np.maximum(median(np.abs(ratios - middle), axis=0), _MAD_FLOOR)
    error = MEDIAN_ERROR * MAD_TO_SIGMA * mad / np.sqrt(steps)
    persistence = (ratios > 1 + THRESHOLDS.straggler_slowdown_ratio / 2).sum(axis=0) / steps
    large = middle - 1 >= np.maximum(THRESHOLDS.straggler_slowdown_ratio, _SIGMAS * error)
    flagged = (steps >= fewest) & (persistence >= THRESHOLDS.straggler_persistence_ratio) & large
    return _Differences(flagged, middle, persistence)


def _named(
    flagged: Bools, ranks: Ints, difference: _Differences, waits: Floats, *, pattern: Pattern
) -> list[Straggler]:
    # Half of a group cannot be slow by comparison with the other half: that is another kind of job.
    if not 0 < np.count_nonzero(flagged) <= max(1, (len(ranks) - 1) // 2):
        return []
    return [
        Straggler(
            rank=int(ranks[index]),
            pattern=pattern,
            ratio=float(difference.ratio[index]),
            wait_ratio=float(waits[index]),
            persistence_ratio=float(difference.persistence[index]),
            peers=tuple(np.delete(ranks, index).tolist()),
            source="timers: by rank" if pattern is Pattern.SLOW_COMPUTE else "nvml",
        )
        for index in np.flatnonzero(flagged)
    ]
