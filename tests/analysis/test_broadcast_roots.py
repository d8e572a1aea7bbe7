"""In a job of unknown layout, a rank that hands others something in each step may wait for data itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from analysis.jobs import gpu_table, job_data, step_table
from analysis.test_lateness import STEP_S, gradients, lags

from perfd.analysis.data.job_data import JobData, LaunchTable
from perfd.analysis.diagnosis import AnalysisSettings, summarise
from perfd.analysis.findings import Culprit, Finding, Kind
from perfd.model import GpuColumn
from tests.support.nccl_records import CollectiveTable, NcclTime

COUNTED_S = 30.0
ROLE, RANK = Culprit(kind="broadcast root", id=0), Culprit(kind="rank", id=0)


def broadcasts(late: np.ndarray, *, counted_s: float = COUNTED_S, steps: int = 40) -> CollectiveTable:
    """Five in each step, all of which wait for who is late in it."""
    return gradients(
        np.resize(late, (steps, late.shape[1])), buckets=5, operation="Broadcast", counted_s=counted_s
    )


def job(*tables: CollectiveTable, ranks: int = 2, **seen: Any) -> JobData:
    times = [NcclTime(rank=rank, busy_s=6.0, span_s=10.0, lost_operations=0) for rank in range(ranks)]
    return job_data(step_table([STEP_S] * 100), collectives=tables, nccl=times, now_unix_s=1008.0, **seen)


def headline(data: JobData) -> Finding:
    return summarise(data, AnalysisSettings()).bottleneck


def late(rank: int = 0, ranks: int = 2) -> tuple[np.ndarray, CollectiveTable]:
    lag = lags(40, ranks, {rank: 0.3})
    return lag, gradients(lag, counted_s=COUNTED_S)


def hosts(workers: list[float]) -> LaunchTable:
    """Rank 0 sleeps 30% of the time."""
    shape = (4, len(workers))
    return LaunchTable(
        rank=np.arange(len(workers)),
        span_s=np.broadcast_to(np.array([2.0, 4.0, 10.0, 60.0])[:, None], shape),
        asleep_ratio=np.broadcast_to(np.array([0.3, *[0.0] * (len(workers) - 1)]), shape),
        loader_busy_ratio=np.full(shape, 0.01),
        loader_workers=np.array(workers),
        age_s=np.zeros(len(workers)),
    )


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_late_root_is_named_by_its_role_and_what_is_unknown_is_said(ranks: int) -> None:
    lag, reductions = late(ranks=ranks)
    found = headline(job(reductions, broadcasts(lag), ranks=ranks))

    assert (found.kind, found.culprits, found.ranks) == (Kind.LATE_HOSTS, (ROLE,), (0,))
    assert found.gain_ratio == pytest.approx(0.3, abs=0.02)
    assert "it may read the data for them" in found.evidence[-1]


@pytest.mark.parametrize(
    "tables",
    [
        (),
        (broadcasts(lags(40, 2, {0: 0.3}), steps=3),),
        (broadcasts(lags(40, 2, {0: 0.3}), counted_s=1.0),),
    ],
    ids=["without broadcasts", "a few", "those of the start"],
)
def test_without_broadcasts_in_each_step_the_rank_is_named(tables: tuple[CollectiveTable, ...]) -> None:
    found = headline(job(late()[1], *tables))

    assert (found.kind, found.culprits) == (Kind.STRAGGLER, (RANK,))


def test_another_rank_that_is_late_is_named() -> None:
    lag, reductions = late(1)
    found = headline(job(reductions, broadcasts(lag)))

    assert (found.kind, found.culprits) == (Kind.STRAGGLER, (Culprit(kind="rank", id=1),))


@pytest.mark.parametrize(("active", "culprit"), [([0.9, 0.5], RANK), ([0.5, 0.5], ROLE), ([0.4, 0.5], ROLE)])
def test_a_root_whose_gpu_has_more_work_is_slow_itself(active: list[float], culprit: Culprit) -> None:
    lag, reductions = late()
    seen = gpu_table(step_table([STEP_S] * 100), {GpuColumn.SM_ACTIVE: active})

    assert headline(job(reductions, broadcasts(lag), gpu=seen)).culprits == (culprit,)


@pytest.mark.parametrize(
    ("workers", "culprit"),
    [([2.0, 2.0], RANK), ([np.nan, 2.0], RANK), ([2.0, np.nan], ROLE), ([np.nan, np.nan], ROLE)],
)
def test_where_others_load_their_own_data_it_does_not_read_it_for_them(
    workers: list[float], culprit: Culprit
) -> None:
    lag, reductions = late()

    assert headline(job(reductions, broadcasts(lag), launches=hosts(workers))).culprits == (culprit,)


def test_while_hosts_have_just_come_the_rank_is_named_as_without_broadcasts() -> None:
    lag, reductions = late()
    just_come = replace(hosts([np.nan, np.nan]), asleep_ratio=np.full((4, 2), np.nan))

    assert headline(job(reductions, broadcasts(lag), launches=just_come)).culprits == (RANK,)
