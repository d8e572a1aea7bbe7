"""The one rank that reads the data of a job: that others wait for it does not show that it is slow itself.

In a job of one tensor group the first rank reads the data for all of them, by design. Slow input makes it
late, and so does a slow host; no other rank has its role to compare it with. Only what shows that it worked
in the time by which steps became longer separates the two: more work of its GPU, or a thread that launches
work and never sleeps while workers of a loader read the data.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfd.analysis.collectives import SlowRank
from perfd.analysis.data.job_data import Floats, GpuTable, JobData, LaunchTable
from perfd.analysis.steps import LongerSteps
from perfd.analysis.stragglers.role_groups import others
from perfd.model import GpuColumn, ParallelLayout

_WORKING = 0.5
"""Of the added time, that a GPU computes for longer where it has more work."""
_NEWEST_SAMPLES, _MORE_ACTIVE = 3, 0.1
"""Of each GPU those that are now, and by how much more one is active that has more work. Chosen."""
_SAME_CHANGE_STEPS = 2
"""Steps between which two sources see one change."""
_AWAKE = 0.25
"""Of the added time, that a host sleeps at most if it does not wait."""
_ASLEEP = 0.8
"""Of it, that a host sleeps at least if it waits all the time."""
_SEEN = 0.5
"""Of the time since the change, that readings of the host cover at least."""
_LATEST_S = 0.5
"""A window that is so much longer than the time since a change still is of that time."""


class OwnWork(Enum):
    """What shows that a rank is late by its own work and not by its input."""

    GPU = auto()
    HOST = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingRank:
    """The rank that reads the data for all, which the others wait for since some step."""

    rank: int
    own_work: OwnWork | None = None
    """None where it may as well wait for data."""
    asleep_ratio: float | None = None
    """The share of time since then in which threads that launch its work sleep; None where it is unknown, or
    less than what steps are longer."""
    loader_workers: int | None = None
    loader_busy_ratio: float | None = None
    """Of its loader workers, since then."""


def only_reader(parallel: ParallelLayout, launches: LaunchTable | None) -> int | None:
    """The rank that reads the data for all; None where several do, or no tensor group is the whole job.

    Workers of a loader beside another rank show that this one reads, too.
    """
    if (parallel.tp or 1) < 2 or parallel.world_size != parallel.tp:
        return None
    if launches is not None and bool((launches.loader_workers[launches.rank != 0] >= 1).any()):
        return None
    return 0


def only_readers(ranks: Collection[int], launches: LaunchTable | None) -> frozenset[int]:
    """These ranks, unless others are seen to read data, or are about to be: their hosts have just come."""
    if launches is not None:
        elsewhere = ~np.isin(launches.rank, list(ranks))
        seen = np.isfinite(launches.asleep_ratio).any()
        if not seen or (launches.loader_workers[elsewhere] >= 1).any():
            return frozenset()
    return frozenset(ranks)


def computing_more(gpu: GpuTable) -> frozenset[int]:
    """The ranks whose GPUs have lately had more work than those of the others: slow input gives none more."""
    active = gpu.metrics.get(GpuColumn.SM_ACTIVE)
    if active is None or active.shape[1] < 2:
        return frozenset()
    lately = _newest_means(active)
    more = lately >= (1 + _MORE_ACTIVE) * others(lately)
    return frozenset(
        key.rank for key, much in zip(gpu.gpus, more, strict=True) if much and key.rank is not None
    )


def _newest_means(samples: NDArray[np.floating[Any]]) -> Floats:
    """Of each column the mean of the newest samples that are known; NaN with too few."""
    newest = samples[-_NEWEST_SAMPLES:].astype(np.float64)
    known = (
        np.isfinite(newest).all(axis=0) if len(newest) == _NEWEST_SAMPLES else np.zeros(newest.shape[1], bool)
    )
    means = np.full(newest.shape[1], np.nan)
    if known.any():
        means[known] = newest[:, known].mean(axis=0)
    for column in np.flatnonzero(~known):
        means[column] = _newest_mean(samples[:, column].astype(np.float64))
    return means


def _newest_mean(samples: Floats) -> float:
    known = samples[np.isfinite(samples)][-_NEWEST_SAMPLES:]
    return float(known.mean()) if len(known) == _NEWEST_SAMPLES else np.nan


def reading_rank(
    slow: SlowRank | None, job: JobData, parallel: ParallelLayout, longer: LongerSteps | None
) -> ReadingRank | None:
    """What is known of the slow rank, if it reads the data for all others."""
    if slow is None or slow.rank != only_reader(parallel, job.launches):
        return None
    if _computes_longer(slow, longer):
        return ReadingRank(rank=slow.rank, own_work=OwnWork.GPU)
    table = job.launches
    if table is None or slow.rank not in table.rank:
        return ReadingRank(rank=slow.rank)
    return _host(slow, job, table, int(np.argmax(table.rank == slow.rank)))


def _computes_longer(slow: SlowRank, longer: LongerSteps | None) -> bool:
    if longer is None or abs(longer.since_step - slow.since_step) > _SAME_CHANGE_STEPS:
        return False
    return bool((longer.computing_ratio[longer.ranks == slow.rank] >= _WORKING).any())


def _host(slow: SlowRank, job: JobData, table: LaunchTable, place: int) -> ReadingRank:
    since = job.steps.step >= slow.since_step
    if not since.any():
        return ReadingRank(rank=slow.rank)
    lasted_s = job.steps.step_time_s[since] * job.steps.steps_covered[since]
    began_unix_s = job.steps.time_unix_s[since][0] - lasted_s[0]
    elapsed_s = float(job.now_unix_s - began_unix_s)
    spans_s, asleep = table.span_s[:, place], table.asleep_ratio[:, place]
    workers = float(table.loader_workers[place])
    seen_s = elapsed_s - float(table.age_s[place])
    within = np.flatnonzero(spans_s <= seen_s + _LATEST_S)
    covering = np.flatnonzero(spans_s >= seen_s)
    # All that it slept since then is at most what it slept in a window that holds all of that time.
    most_s = float(np.min(asleep[covering] * spans_s[covering], initial=np.inf))
    added_s = slow.gain_ratio * min(seen_s, float(lasted_s.sum()))
    awake = seen_s >= _SEEN * elapsed_s and most_s <= _AWAKE * added_s
    newest = float(asleep[within[-1]]) if len(within) else np.nan
    busy = float(table.loader_busy_ratio[within[-1], place]) if len(within) else np.nan
    return ReadingRank(
        rank=slow.rank,
        # Without workers that thread reads the data itself, and is busy with it.
        own_work=OwnWork.HOST if awake and workers >= 1 else None,
        asleep_ratio=newest if newest >= _ASLEEP * slow.gain_ratio else None,
        loader_workers=int(workers) if workers >= 1 else None,
        loader_busy_ratio=busy if np.isfinite(busy) else None,
    )
