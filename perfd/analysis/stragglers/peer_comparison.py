"""Which rank the others wait for: by timers of each rank, or by what its GPU does while theirs wait.

Only peers are compared: ranks of one role, which have the same work.
A rank is named when it differs in size, in persistence and beyond the scatter
of its own steps; where a peer is missing, no rank is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

import numpy as np

from perfd.analysis.data.job_data import Bools, Floats, Ints
from perfd.analysis.data.robust_stats import MAD_TO_SIGMA, MEDIAN_ERROR, median
from perfd.analysis.steps import STEADY_STEPS, TRAINING_TIME, GpuActivity, Timers, newest_rows
from perfd.analysis.stragglers.role_groups import RoleBlock, others, role_blocks
from perfd.model import GpuColumn, ParallelLayout
from perfd.thresholds import THRESHOLDS

_FEWEST_STEPS = 5
"""With timers of one clock; the median of fewer is not trusted. Chosen."""
_FEWEST_IDLE_STEPS = 10
"""Hosts are late in turn: of two, the same one is in all of so many steps by chance in 1 of 512."""
_FEWEST_SAMPLED_STEPS = 10
"""Of several nodes: their clocks differ by seconds, so the first samples may be of starting up."""
_CHANCE = 2.7e-3
"""That any of the ranks compared differs by as much by chance: 3 standard errors of the median of one of two
ranks, and 4.3 of one of 256. Chosen."""
_MAD_FLOOR = 0.005
"""Timers and GPM are no more exact than this."""
_FEWEST_SPREAD = 4
"""Peers: of fewer, a slow one changes what the others are compared with."""
_LASTS = 0.5
"""Of what a rank differs by in most steps, which it does in the newest while that lasts. Chosen."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityComparison:
    """What the GPUs of ranks of one role show, compared with each other."""

    stragglers: Sequence[Straggler] = ()
    """The one that its peers wait for most comes first."""
    undecided: bool = False
    """Whether GPUs of all peers are read that may yet show who is slow, but in too few steps so far."""
    idle_ratio: float | None = None
    """How much more of the time than its peers' the idlest GPU runs no kernel; None where one is not seen."""
    busier_ratio: float | None = None
    """How much more than its peers' the tensor cores, or SMs, of the busiest GPU are active, by theirs."""


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
    ranks = np.arange(forward.shape[1])
    found: list[_Named] = []
    hold_waiting = timers.hold_waiting
    for block in role_blocks(ranks, parallel):
        own = forward[:, block.places] + backward[:, block.places]
        if hold_waiting and block.places.shape[1] < _MAJORITY:
            continue
        typical = others(own)
        if hold_waiting:
            typical = typical - _waited_for(forward[:, block.places], backward[:, block.places])
        difference = _differences(_relative(own, typical), _FEWEST_STEPS)
        waits = median((own - typical) / step_time_s[:, None, None], axis=0)
        flagged = difference.flagged & (waits >= THRESHOLDS.straggler_wait_ratio) & _seen(own)[:, None]
        found += _named(flagged, block, ranks, difference, waits, pattern=Pattern.SLOW_COMPUTE)
    return _worst_first(found)


def _waited_for(forward: Floats, backward: Floats) -> Floats:
    """How long the others wait for each peer in backward; no more than its forward is longer than theirs."""
    longer, shorter = forward - others(forward), others(backward) - backward
    return np.maximum(np.minimum(longer, shorter), 0.0)


def compare_activity(activity: GpuActivity, parallel: ParallelLayout) -> ActivityComparison:
    """Ranks whose GPU keeps computing, or keeps idling, while their peers wait, and by how much any differs.

    Waiting in an NCCL kernel occupies a few SMs and no tensor core. So a rank
    with more work, or with a slower clock, shows more tensor and SM activity than
    its peers over the same steps, and one that its host keeps waiting shows less
    activity of any kind.
    """
    ranks = _ranks(activity)
    blocks = [] if ranks is None else role_blocks(ranks, parallel)
    if ranks is None or not blocks:
        return ActivityComparison()
    undecided = activity.source != TRAINING_TIME and _undecided(activity)
    if activity.source != STEADY_STEPS:
        return ActivityComparison(undecided=undecided)
    fewest = _fewest_sampled_steps(activity)
    found: list[_Named] = []
    idle: list[float | None] = []
    busier: list[float | None] = []
    for block in blocks:
        in_busy, busy_ratio = _busy_longer(activity, block, ranks, fewest)
        in_idle, idle_ratio = _idle(activity, block, ranks, fewest)
        found += [*in_busy, *in_idle]
        busier.append(busy_ratio)
        idle.append(idle_ratio)
    return ActivityComparison(
        stragglers=_worst_first(found),
        undecided=undecided,
        idle_ratio=_most(idle),
        busier_ratio=_most(busier),
    )


def _undecided(activity: GpuActivity) -> bool:
    tensor = activity.metrics.get(GpuColumn.TENSOR_ACTIVE)
    sampled = activity.metrics.get(activity.kernel_metric) if tensor is None else tensor
    if sampled is None:
        return activity.source is None
    # By the median GPU: one that is never read shows nothing, however long it is waited for.
    return bool(np.median(np.isfinite(sampled).sum(axis=0)) < _fewest_sampled_steps(activity))


def _ranks(activity: GpuActivity) -> Ints | None:
    """The rank of each GPU; None when one is unknown, or two are the same."""
    ranks = np.array([-1 if key.rank is None else key.rank for key in activity.gpus], dtype=np.int64)
    return None if (ranks < 0).any() or len(set(ranks.tolist())) != len(ranks) else ranks


def _fewest_sampled_steps(activity: GpuActivity) -> int:
    one_clock = len({key.node for key in activity.gpus}) == 1
    return _FEWEST_STEPS if one_clock else _FEWEST_SAMPLED_STEPS


def _busy_longer(
    activity: GpuActivity, block: RoleBlock, ranks: Ints, fewest: int
) -> tuple[list[_Named], float | None]:
    """Who is busier than its peers, and how much more the busiest is."""
    tensor = _of_block(activity, GpuColumn.TENSOR_ACTIVE, block)
    streaming = _of_block(activity, GpuColumn.SM_ACTIVE, block)
    if tensor is None or streaming is None:
        return [], None
    tensor_others, streaming_others = others(tensor), others(streaming)
    by_tensor = _relative(tensor, tensor_others)
    ratio = None
    if _enough(tensor, fewest) and _enough(streaming, fewest):
        by_streaming = _relative(streaming, streaming_others)
        ratio = max(float(median(one - 1, axis=0).max()) for one in (by_tensor, by_streaming))
    difference = _differences(by_tensor, fewest)
    # What the peers' SMs do not do and the rank's do is their waiting, a little less than all of it.
    waits = median(1 - _relative(streaming_others, streaming), axis=0)
    known = _seen(tensor) & _seen(streaming)
    flagged = difference.flagged & (waits >= THRESHOLDS.straggler_wait_ratio) & known[:, None]
    return _named(flagged, block, ranks, difference, waits, pattern=Pattern.BUSY_LONGER), ratio


def _idle(
    activity: GpuActivity, block: RoleBlock, ranks: Ints, fewest: int
) -> tuple[list[_Named], float | None]:
    """Who is idler than its peers, and how much more of the time the idlest is."""
    active = _of_block(activity, activity.kernel_metric, block)
    if active is None:
        return [], None
    missing = others(active) - active
    difference = _differences(1 + missing, fewest)
    waits = median(missing, axis=0)
    ratio = float(waits.max()) if _enough(active, fewest) else None
    often = np.isfinite(missing).sum(axis=0) >= _FEWEST_IDLE_STEPS
    flagged = difference.flagged & often & _seen(active)[:, None]
    return _named(flagged, block, ranks, difference, waits, pattern=Pattern.IDLE), ratio


def _most(ratios: Sequence[float | None]) -> float | None:
    """The largest of all roles; None where one is unknown."""
    known = [ratio for ratio in ratios if ratio is not None]
    return max(known) if len(known) == len(ratios) else None


def _of_block(activity: GpuActivity, metric: GpuColumn, block: RoleBlock) -> Floats | None:
    """Steps by roles by peers; None where no GPU has the metric."""
    values = activity.metrics.get(metric)
    return None if values is None else np.asarray(values[:, block.places], dtype=np.float64)


def _seen(values: Floats) -> Bools:
    """Of each role, whether every peer has a value in some step: where one is missing, no rank is named."""
    return np.asarray(np.isfinite(values).any(axis=0).all(axis=-1))


def _enough(values: Floats, fewest: int) -> bool:
    """Whether every peer of every role has values in so many steps."""
    return bool(np.isfinite(values).sum(axis=0).min() >= fewest)


def _relative(values: Floats, reference: Floats) -> Floats:
    """By the reference, absent where that is nothing to compare with."""
    return values / np.where(reference > 0, reference, np.nan)


def _differences(ratios: Floats, fewest: int) -> _Differences:
    """Flags peers over the least slowdown, beyond scatter, in most of at least `fewest` steps."""
    steps = np.maximum(np.isfinite(ratios).sum(axis=0), 1)
    middle = median(ratios, axis=0)
    mad = np.maximum(median(np.abs(ratios - middle), axis=0), _MAD_FLOOR)
    # Of many ranks with few samples, one scatters little by chance; they are sampled alike.
    mad = np.fmax(mad, median(mad.ravel()))
    error = MEDIAN_ERROR * MAD_TO_SIGMA * mad / np.sqrt(steps)
    sigmas = NormalDist().inv_cdf(1 - _CHANCE / max(2, mad.size))
    persistence = (ratios > 1 + THRESHOLDS.straggler_slowdown_ratio / 2).sum(axis=0) / steps
    large = middle - 1 >= np.maximum(
        THRESHOLDS.straggler_slowdown_ratio, sigmas * np.hypot(error, _spread(middle))
    )
    # A fault that is over is in most of these steps for some time.
    lately = median(ratios[-newest_rows(len(ratios), fewest) :], axis=0) - 1
    lasts = ~(lately < _LASTS * (middle - 1))
    flagged = (steps >= fewest) & (persistence >= THRESHOLDS.straggler_persistence_ratio) & large & lasts
    return _Differences(flagged, middle, persistence)


def _spread(ratios: Floats) -> float:
    """The standard deviation between ranks, by most of them: as healthy GPUs differ; 0 with few peers."""
    if ratios.shape[-1] < _FEWEST_SPREAD:
        return 0.0
    return MAD_TO_SIGMA * float(median(np.abs(ratios - 1).ravel()))


@dataclass(frozen=True, slots=True)
class _Named:
    role: int
    straggler: Straggler


def _named(
    flagged: Bools,
    block: RoleBlock,
    ranks: Ints,
    difference: _Differences,
    waits: Floats,
    *,
    pattern: Pattern,
) -> list[_Named]:
    # Half of a group cannot be slow by comparison with the other half: that is another kind of job.
    counts = np.count_nonzero(flagged, axis=1)
    few = (counts > 0) & (counts <= max(1, (flagged.shape[1] - 1) // 2))
    return [
        _Named(
            int(block.roles[row]),
            Straggler(
                rank=int(ranks[block.places[row, index]]),
                pattern=pattern,
                ratio=float(difference.ratio[row, index]),
                wait_ratio=float(waits[row, index]),
                persistence_ratio=float(difference.persistence[row, index]),
                peers=tuple(np.delete(ranks[block.places[row]], index).tolist()),
                source="timers: by rank" if pattern is Pattern.SLOW_COMPUTE else "nvml",
            ),
        )
        for row, index in np.argwhere(flagged & few[:, None]).tolist()
    ]


def _worst_first(found: Sequence[_Named]) -> tuple[Straggler, ...]:
    ordered = sorted(found, key=lambda one: (-one.straggler.wait_ratio, one.role))
    return tuple(one.straggler for one in ordered)
