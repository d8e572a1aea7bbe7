"""A rank that comes last while all ranks wait for something else is not named before that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import description, gpu_table, job_data, step_table
from analysis.test_lateness import STEP_S, blamed, gradients, lags
from analysis.test_sleeping_hosts import launches

from perfd.analysis.data.job_data import HostWaitTable, JobData, OperationPace
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.analysis.findings import Kind
from perfd.model import GpuColumn, RankColumn, StepDoubt
from tests.support.nccl_records import NcclTime

SINCE = 14
"""Steps since the change, which GPUs have not seen yet."""


def late_since(
    steps: int, late_ratio: float, longer_ratio: float, *, with_gpus: bool = True, step_s: float = STEP_S
) -> JobData:
    """Rank 1 of two is late in the newest `steps` of 60, and the newest `SINCE` take longer."""
    lagging = lags(60, 2, {})
    lagging[60 - steps :, 1] = late_ratio * step_s
    table = step_table([step_s] * (60 - SINCE) + [(1 + longer_ratio) * step_s] * SINCE)
    metrics = {GpuColumn.SM_ACTIVE: (0.8, 0.8), GpuColumn.BUSY: (1.0, 1.0)}
    gpu = gpu_table(table, metrics)
    before = gpu.time_unix_s <= table.time_unix_s[60 - SINCE - 1]
    unseen = {name: np.where(before[:, None], values, np.nan) for name, values in gpu.metrics.items()}
    return job_data(
        table,
        description=description(world_size=2, dp=2),
        collectives=[gradients(lagging, buckets=1, operations_per_s=1 / step_s)],
        nccl=[NcclTime(rank=rank, busy_s=6.0, span_s=10.0, lost_operations=0) for rank in range(2)],
        now_unix_s=float(table.time_unix_s[-1]),
        **({"gpu": replace(gpu, metrics=unseen)} if with_gpus else {}),
    )


def summary(data: JobData) -> JobSummary:
    return summarise(data, AnalysisSettings())


@pytest.mark.parametrize(
    ("steps", "late_ratio", "longer_ratio", "named"),
    [
        (SINCE, 0.12, 1.0, []),
        # It costs as much as steps became longer by.
        (SINCE, 0.3, 0.3, [1]),
        # It was late long before that.
        (60, 0.12, 1.0, [1]),
    ],
    ids=["a part of it", "all of it", "since before"],
)
@pytest.mark.parametrize("with_gpus", [True, False])
def test_a_rank_that_is_late_since_steps_are_longer_must_explain_most_of_it(
    steps: int, late_ratio: float, longer_ratio: float, named: list[int], with_gpus: bool
) -> None:
    """As in recording busyall2: hosts of all ranks became slower, and GPUs show it later, if at all."""
    data = late_since(steps, late_ratio, longer_ratio, with_gpus=with_gpus)
    assert blamed(summary(data)) == named


@pytest.mark.parametrize(
    ("lately", "now", "named"),
    [
        ([0.0, 0.0], [0.25, 0.25], []),
        ([0.25, 0.25], [0.0, 0.0], []),
        ([0.0, 0.0], [0.0, 0.25], [1]),
        ([0.0, 0.0], [0.25, np.nan], [1]),
        ([0.0, 0.0], [0.14, 0.14], [1]),
    ],
    ids=["all now", "all lately", "itself", "unknown", "for less"],
)
def test_while_hosts_of_all_ranks_wait_for_cpus_the_last_one_is_not_named(
    lately: Sequence[float], now: Sequence[float], named: list[int]
) -> None:
    """As in recording crowdedall2, where the median over half a minute shows nothing for 15 s."""
    waits = HostWaitTable(
        rank=np.arange(2),
        waits={RankColumn.CPU_WAIT: np.array(lately)},
        newest={RankColumn.CPU_WAIT: np.array(now)},
    )
    data = late_since(60, 0.3, 0.0, with_gpus=False)
    assert blamed(summary(replace(data, host_waits=waits))) == named


@pytest.mark.parametrize(
    ("step_s", "asleep", "named"),
    [(STEP_S, np.nan, []), (STEP_S, 0.01, [1]), (2 * STEP_S, np.nan, [1])],
    ids=["not yet", "awake", "never"],
)
def test_the_last_rank_is_not_named_while_threads_of_hosts_are_to_be_known_in_a_moment(
    step_s: float, asleep: float, named: list[int]
) -> None:
    """As in recording earlyloader2: a second later all hosts are seen to sleep for two thirds of the time."""
    data = late_since(60, 0.3, 0.0, with_gpus=False, step_s=step_s)
    assert blamed(summary(replace(data, launches=launches([[asleep]] * 4, ranks=2)))) == named


@pytest.mark.parametrize(("more", "named"), [(0.2, [1]), (0.0, [])])
def test_a_rank_whose_gpu_has_more_work_is_named_before_threads_of_hosts_are_known(
    more: float, named: list[int]
) -> None:
    data = late_since(60, 0.3, 0.0, with_gpus=False)
    gpu = gpu_table(data.steps, {GpuColumn.SM_ACTIVE: (0.6, 0.6 + more), GpuColumn.BUSY: (1.0, 1.0)})
    unknown = launches([[np.nan]] * 4, ranks=2)
    assert blamed(summary(replace(data, gpu=gpu, launches=unknown))) == named


def stalling(step_s: float = STEP_S) -> JobData:
    """Rank 1 of two takes half a step longer in every tenth one."""
    times = [step_s * (1.5 if step % 10 == 5 else 1.0) for step in range(60)]
    lagging = lags(60, 2, {})
    lagging[5::10, 1] = 0.5 * step_s
    table = step_table(times)
    return job_data(
        table,
        description=description(world_size=2, dp=2),
        collectives=[gradients(lagging, buckets=1, operations_per_s=1 / step_s)],
        nccl=[NcclTime(rank=rank, busy_s=6.0, span_s=10.0, lost_operations=0) for rank in range(2)],
        now_unix_s=float(table.time_unix_s[-1]),
    )


@pytest.mark.parametrize(("running", "named"), [(0.5, []), (0.9, [1])])
def test_where_hosts_limit_a_job_the_one_that_stalls_by_little_is_not_named(
    running: float, named: list[int]
) -> None:
    """As in recording busyearly2: all hosts are slow, and one of them by a little more in some steps."""
    data = stalling()
    gpu = gpu_table(data.steps, {GpuColumn.BUSY: (running, running)})
    assert blamed(summary(replace(data, gpu=gpu))) == named


@pytest.mark.parametrize(("computing", "named"), [((0.3, 0.2), []), ((0.5, 0.3), [1])])
def test_gpus_that_wait_in_nccl_for_hosts_have_no_work_either(
    computing: tuple[float, float], named: list[int]
) -> None:
    """As in recording random24: a loop of FSDP whose hosts are late in turn, so that GPUs wait in NCCL."""
    data = late_since(60, 0.13, 0.0, with_gpus=False, step_s=STEP_S / 4)
    gpu = gpu_table(data.steps, {GpuColumn.SM_ACTIVE: computing, GpuColumn.BUSY: (1.0, 1.0)})
    assert blamed(summary(replace(data, gpu=gpu))) == named


def test_a_rank_that_stalls_is_named_before_threads_of_hosts_are_known() -> None:
    unknown = launches([[np.nan]] * 4, ranks=2)
    assert blamed(summary(replace(stalling(), launches=unknown))) == [1]


@pytest.mark.parametrize(
    ("asleep", "late_ratio", "named"),
    [(0.01, 0.2, []), (0.5, 0.2, [1]), (0.01, 0.3, [1])],
    ids=["may limit it", "sleep", "costs more"],
)
def test_without_gpus_hosts_that_never_sleep_may_limit_a_job_and_this_is_said(
    asleep: float, late_ratio: float, named: list[int]
) -> None:
    """As in recording sampled2, a loop that samples a graph on its hosts, without its samples of GPUs."""
    data = late_since(60, late_ratio, 0.0, with_gpus=False, step_s=2 * STEP_S)
    found = summary(replace(data, launches=launches([[asleep, asleep / 2]] * 4, ranks=2)))
    assert blamed(found) == named
    missing = [one for one in found.findings if one.kind is Kind.MISSING_TELEMETRY]
    assert any("No GPU is read" in sentence for one in missing for sentence in one.evidence) is (
        asleep < 0.05
    )


def always_late(scatter: float, late_ratio: float = 0.2, busy_ratio: float = 0.6) -> JobData:
    """Rank 1 of two is late in each step, by that much of it in the middle; by how much scatters evenly."""
    by_chance = np.random.default_rng(1).uniform(-1.0, 1.0, 60)
    lagging = lags(60, 2, {0: 0.05})
    lagging[:, 1] = np.maximum(0.0, late_ratio * STEP_S * (1 + scatter * by_chance))
    table = step_table([STEP_S] * 60)
    return job_data(
        table,
        description=description(world_size=2, dp=2),
        collectives=[gradients(lagging, buckets=1, operations_per_s=1 / STEP_S)],
        nccl=[NcclTime(rank=rank, busy_s=2.5, span_s=10.0, lost_operations=0) for rank in range(2)],
        gpu=gpu_table(table, {"busy_ratio": [busy_ratio, busy_ratio]}, per_step=1),
        now_unix_s=float(table.time_unix_s[-1]),
    )


@pytest.mark.parametrize(
    ("doubt", "late_ratio", "tentative"),
    [
        (StepDoubt.MICRO_BATCHES, 0.16, True),
        (StepDoubt.MICRO_BATCHES, 0.165, False),
        (None, 0.16, False),
    ],
)
def test_of_a_rank_that_is_late_by_little_in_rows_that_may_be_micro_batches_one_look_is_too_little(
    doubt: StepDoubt | None, late_ratio: float, tentative: bool
) -> None:
    """As in recording random157: ranks with more work for their GPUs, that cost nothing, for one look."""
    rows = OperationPace(
        communicator="ab", operation="AllReduce", per_step=1, row_end_sequence=60, doubt=doubt
    )
    seen = summary(replace(always_late(0.0, late_ratio, busy_ratio=1.0), operation_pace=rows)).findings
    (found,) = [one for one in seen if one.kind is Kind.STRAGGLER]
    assert found.tentative is tentative


@pytest.mark.parametrize(("scatter", "tentative"), [(0.0, False), (0.6, False), (0.9, True)])
def test_of_a_rank_that_is_late_by_little_more_than_it_scatters_one_look_is_too_little(
    scatter: float, tentative: bool
) -> None:
    """As in recordings random42 and random62, whose hosts were late for a second or two, as if by a fault."""
    found = summary(always_late(scatter))
    assert found.bottleneck.kind is Kind.STRAGGLER
    assert found.bottleneck.tentative is tentative
    # Nor is its GPU left out of what limits the job otherwise.
    idle = next(one for one in found.findings if one.kind is Kind.HOST_BOUND)
    assert idle.evidence[0].startswith("GPUs" if tentative else "The other GPUs")
