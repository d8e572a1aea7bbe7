"""A rank whose GPU alone has more work since steps became longer, where NCCL does not show who waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import job_data, step_table
from analysis.test_reading_rank import facts

from perfd.analysis.collectives import NcclRank, NcclSummary
from perfd.analysis.collectives.communicator_totals import NcclKind
from perfd.analysis.data.job_data import GpuKey, GpuTable, JobData
from perfd.analysis.diagnosis import AnalysisSettings, summarise
from perfd.analysis.diagnosis.bottleneck import find_bottlenecks
from perfd.analysis.findings import Culprit, Finding, Kind
from perfd.analysis.steps import LongerSteps
from perfd.model import GpuColumn

BEFORE_S, SINCE_S, WORK_S = 0.1, 0.15, 0.08
BEFORE, SINCE = 80, 40
GAIN = 1 - BEFORE_S / SINCE_S


def job(more_work_s: Sequence[float]) -> JobData:
    """A loop without NCCL's operations, whose steps are shorter than GPUs are read."""
    steps = step_table([BEFORE_S] * BEFORE + [SINCE_S] * SINCE)
    begin_s = float(steps.time_unix_s[0]) - BEFORE_S
    change_s = float(steps.time_unix_s[BEFORE - 1])
    read_s = np.arange(begin_s + 1, float(steps.time_unix_s[-1]), 1.0)
    later = np.clip(read_s - change_s, 0, 1)[:, None]
    active = (1 - later) * WORK_S / BEFORE_S + later * (WORK_S + np.array(more_work_s)) / SINCE_S
    return job_data(
        steps,
        gpu=GpuTable(
            time_unix_s=read_s,
            gpus=[GpuKey(node="node0", gpu=str(rank), rank=rank) for rank in range(len(more_work_s))],
            metrics={
                GpuColumn.SM_ACTIVE: active.astype(np.float32),
                GpuColumn.BUSY: np.ones(active.shape, dtype=np.float32),
            },
        ),
    )


def blaming(found: Sequence[Finding]) -> list[tuple[Kind, tuple[Culprit, ...]]]:
    return [(one.kind, one.culprits) for one in found if any(who.kind == "rank" for who in one.culprits)]


def test_a_rank_whose_gpu_alone_computes_in_the_added_time_of_short_steps_is_named():
    found = summarise(job([0.05, 0.0, 0.0]), AnalysisSettings()).findings

    assert blaming(found) == [(Kind.STRAGGLER, (Culprit(kind="rank", id=0),))]
    slow = next(one for one in found if one.kind is Kind.STRAGGLER)
    assert slow.gain_ratio == pytest.approx(GAIN, abs=0.01)
    assert list(slow.evidence[:3]) == [
        "Steps take 150.0 ms since step 81, 100.0 ms before.",
        "The GPU of rank 0 computes in 100.0% of the added time (GPM).",
        "Those of all others have no more work than before (GPM).",
    ]


@pytest.mark.parametrize("more_work_s", [[0.05, 0.05], [0.05, 0.02], [0.0, 0.0], [0.05]])
def test_more_work_of_several_gpus_of_none_or_of_the_only_one_blames_none(more_work_s):
    assert not blaming(summarise(job(more_work_s), AnalysisSettings()).findings)


def seen(operation: str, wait_ratio: float) -> list[Finding]:
    longer = LongerSteps(
        since_step=20,
        before_s=BEFORE_S,
        since_s=SINCE_S,
        longer_for_s=3.0,
        lines=8,
        ranks=np.arange(2),
        computing_ratio=np.array([0.0, 0.9]),
        running_ratio=np.array([1.0, 1.0]),
        active_before_ratio=np.full(2, 0.9),
    )
    kind = NcclKind(
        group=None, operation=operation, communicators=1, transfer_s=1e-4, wait_ratio=0.0, kernel_ratio=0.05,
        bus_bytes_per_s=None,
    )  # fmt: skip
    one = NcclSummary(
        ranks=(
            NcclRank(rank=0, busy_ratio=0.1 + wait_ratio, wait_ratio=wait_ratio, gain_ratio=None),
            NcclRank(rank=1, busy_ratio=0.1, wait_ratio=0.0, gain_ratio=None),
        ),
        kinds=(kind,),
        source="nccl plugin",
    )
    evidence = replace(
        facts(None), nccl=one, reading=None, only_reader=None, longer_steps=longer,
        computing_more=frozenset({1}),
    )  # fmt: skip
    return find_bottlenecks(evidence)


def test_where_all_exchange_with_all_nccl_shows_no_waiting_and_the_gpu_does():
    assert blaming(seen("SendRecv", 0.02)) == [(Kind.STRAGGLER, (Culprit(kind="rank", id=1),))]
    assert any("more tokens" in sentence for one in seen("SendRecv", 0.02) for sentence in one.evidence)


def test_where_nccl_shows_whom_the_others_wait_for_the_gpu_alone_blames_none():
    assert not blaming(seen("AllReduce", 0.02))
    assert not blaming(seen("SendRecv", 0.3))
