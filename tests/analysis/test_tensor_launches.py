"""Tensor groups whose hosts launch late in turn: idle GPUs and waiting peers are one loss, nobody's fault."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import job_data, step_table

from perfd.analysis.communication import Communication, Dimension
from perfd.analysis.data.job_data import GpuKey
from perfd.analysis.diagnosis import AnalysisSettings
from perfd.analysis.diagnosis.host_delay_findings import judge_tensor_launches
from perfd.analysis.diagnosis.job_analysis import facts_of
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Culprit, Finding, Kind, ranked
from perfd.analysis.steps import STEADY_STEPS, GpuActivity, gpu_activity, steady_rows
from perfd.model import GpuColumn, ParallelLayout
from perfd.thresholds import THRESHOLDS


def facts(*, tensor: int = 2, busy: float = 0.77, waits: float | None = 0.19) -> JobEvidence:
    job = job_data(step_table([1.0] * 20))
    steady = steady_rows(job.steps, (), None)
    kernels = np.full((20, 4), busy)
    activity = GpuActivity(
        gpus=[GpuKey(node="n", gpu=str(rank), rank=rank) for rank in range(4)],
        metrics={GpuColumn.BUSY: kernels},
        medians={GpuColumn.BUSY: np.full(4, busy)},
        samples=np.arange(20),
        source=STEADY_STEPS,
    )
    dimension = Dimension(group="tp", share_ratio=0.22, wait_ratio=waits, source="nccl plugin")
    return replace(
        facts_of(job, AnalysisSettings(), steady, gpu_activity(job.gpu, job.steps, steady.rows)),
        parallel=ParallelLayout(world_size=4, tp=tensor, pp=1, dp=4 // tensor),
        activity=activity,
        communication=Communication(dimensions=(dimension,)),
    )


def test_idle_gpus_and_waiting_peers_are_one_loss_that_no_rank_causes() -> None:
    finding = judge_tensor_launches(facts(), straggler=None)

    assert finding is not None
    assert (finding.kind, finding.culprits) == (Kind.LAUNCH_BOUND, ())
    assert finding.gain_ratio == pytest.approx(0.23 + 0.19)
    host = Finding(kind=Kind.HOST_BOUND, confidence=0.4, gain_ratio=0.23)
    (root,) = ranked([host, finding])
    assert [effect.kind for effect in root.effects] == [Kind.HOST_BOUND]


@pytest.mark.parametrize(
    ("idle", "waits", "said"), [(0.08, 0.13, True), (0.08, 0.11, False), (0.07, 0.5, False)]
)
def test_in_a_group_of_four_each_gpu_idles_half_as_long_while_its_host_is_late(
    idle: float, waits: float, *, said: bool
) -> None:
    found = judge_tensor_launches(facts(tensor=4, busy=1 - idle, waits=waits), straggler=None)

    assert (found is not None) == said


@pytest.mark.parametrize(
    "changed",
    [
        {"tensor": 1},
        {"busy": 1 - THRESHOLDS.idle_ratio + 0.001},
        {"waits": THRESHOLDS.tensor_wait_ratio - 0.001},
        {"waits": None},
    ],
)
def test_without_tensor_groups_idle_gpus_or_waiting_nothing_is_said(changed: dict[str, float | None]) -> None:
    assert judge_tensor_launches(facts(**changed), straggler=None) is None


def test_a_rank_that_is_always_late_is_another_finding() -> None:
    late = Finding(
        kind=Kind.STRAGGLER, confidence=0.8, culprits=(Culprit(kind="rank", id=1),), gain_ratio=0.2
    )

    assert judge_tensor_launches(facts(), straggler=late) is None
