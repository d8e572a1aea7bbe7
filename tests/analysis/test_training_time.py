"""Numbers of a job that prints no steps come from the time in which it trains, or are unknown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import gpu_table, job_data, step_table
from analysis.test_nccl import DP4, table

from perfd.analysis.data.job_data import GpuKey, GpuTable
from perfd.analysis.data.training_time import training_samples
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.analysis.findings import Finding, Kind
from perfd.analysis.steps import gpu_activity
from perfd.model import GpuColumn, StepSource
from tests.support.nccl_records import NcclTime


def gpus(*activity: float, ranks: int = 4, **others: float) -> GpuTable:
    """A sample each second: the share of it in which each GPU ran a kernel."""
    column = np.tile(np.array(activity, np.float32)[:, None], (1, ranks))
    return GpuTable(
        time_unix_s=1000.0 + np.arange(len(activity)),
        gpus=[GpuKey(node="n", gpu=str(rank), rank=rank) for rank in range(ranks)],
        metrics={
            GpuColumn.GRAPHICS_ACTIVE: column,
            **{GpuColumn(name): column * value for name, value in others.items()},
        },
    )


def rows(*activity: float) -> list[int]:
    return training_samples(gpus(*activity)).tolist()


def finding(summary: JobSummary, kind: Kind) -> Finding | None:
    return next((one for one in summary.findings if one.kind is kind), None)


def test_start_end_and_the_edges_of_the_training_do_not_count():
    assert rows(*[0.0] * 20, *[0.9] * 14, *[0.02] * 5) == list(range(21, 33))


@pytest.mark.parametrize(("trains", "enough"), [(12, True), (11, False)])
def test_ten_samples_of_training_are_enough(trains: int, enough: bool):
    assert bool(rows(*[0.0] * 5, *[0.9] * trains, *[0.0] * 5)) is enough


@pytest.mark.parametrize(("idle_s", "left_out"), [(4, False), (5, True)])
def test_a_long_gap_is_a_pause_and_a_short_one_is_part_of_the_training(idle_s: int, left_out: bool):
    found = rows(*[0.9] * 12, *[0.0] * idle_s, *[0.9] * 12)

    assert bool(set(found).isdisjoint(range(12, 12 + idle_s))) is left_out


@pytest.mark.parametrize(("steps", "left_out"), [(4, False), (3, True)])
def test_long_gaps_that_come_again_and_again_are_how_the_job_works(steps: int, left_out: bool):
    found = rows(*([*[0.9] * 8, *[0.0] * 8] * steps))

    assert bool(set(found).isdisjoint(range(8, 16))) is left_out


@pytest.mark.parametrize(("before", "trains"), [(0.21, False), (0.24, True)])
def test_a_quarter_of_the_usual_activity_is_training(before: float, trains: bool):
    assert (rows(*[before] * 20, *[0.9] * 30)[0] < 20) is trains


def test_gpus_that_never_do_anything_do_not_train():
    assert rows(*[0.19] * 60) == []
    assert rows(*[0.21] * 60)
    assert training_samples(GpuTable(time_unix_s=np.zeros(0), gpus=(), metrics={})).tolist() == []


def test_idle_gpus_are_a_share_of_the_time_that_the_job_trains():
    seen = gpus(*[0.0] * 60, *[0.7] * 30, *[0.0] * 20)
    summary = summarise(job_data(step_table([]), gpu=seen), AnalysisSettings())

    assert summary.bottleneck.kind is Kind.HOST_BOUND
    assert summary.bottleneck.gain_ratio == pytest.approx(0.3, abs=1e-6)
    assert "30.0% of the time in which the job trains" in summary.bottleneck.evidence[0]


def test_while_a_job_starts_nothing_limits_it_yet():
    seen = gpus(*[0.0] * 60, *[0.7] * 8, sm_active_ratio=0.1)
    summary = summarise(job_data(step_table([]), gpu=seen), AnalysisSettings())

    assert summary.bottleneck.kind is Kind.UNKNOWN


@pytest.mark.parametrize(("transfer_s", "costs"), [(0.0049, None), (0.0051, 0.51)])
def test_communication_of_a_loop_that_may_overlap_it_is_no_verdict_unless_it_fills_the_time(
    transfer_s: float, costs: float | None
):
    moves = table([0, 1, 2, 3], [0, 0, 0, 0], transfer_s=transfer_s)
    share = 100 * transfer_s
    nccl = [NcclTime(rank=r, busy_s=10 * share, span_s=10, lost_operations=0) for r in range(4)]
    found = summarise(
        job_data(step_table([]), gpu=gpus(*[1.0] * 30), nccl=nccl, collectives=[moves]), AnalysisSettings()
    )

    communication = finding(found, Kind.COMMUNICATION)
    assert communication.confidence == 0.4
    assert communication.gain_ratio == (costs and pytest.approx(costs))


def test_a_job_that_described_itself_is_not_judged_before_its_first_step():
    seen = gpus(*[0.0] * 60, *[0.5] * 30)

    reported = summarise(job_data(step_table([]), gpu=seen, description=DP4), AnalysisSettings())
    assert reported.bottleneck.kind is Kind.UNKNOWN
    assert reported.bottleneck.evidence[-1] == "perfd saw no steady step of this job."


@pytest.mark.parametrize(
    ("sm", "tensor", "kind"),
    [(0.71, 0.3, Kind.COMPUTE_BOUND), (0.69, 0.3, Kind.UNKNOWN), (0.71, 0.51, Kind.NONE)],
)
def test_without_an_mfu_gpus_that_compute_nearly_all_the_time_are_judged_by_their_tensor_cores(
    sm: float, tensor: float, kind: Kind
):
    seen = gpus(*[1.0] * 30, sm_active_ratio=sm, tensor_active_ratio=tensor)
    unlogged = summarise(job_data(step_table([]), gpu=seen), AnalysisSettings())
    untimed = summarise(
        job_data(step_table([float("nan")] * 5), gpu=seen, description=DP4), AnalysisSettings()
    )
    early = summarise(job_data(step_table([float("nan")] * 4), gpu=seen, description=DP4), AnalysisSettings())
    # `perfd run` describes every job that it starts, also one whose log names no framework.
    started = replace(DP4, framework="")
    unnamed = summarise(job_data(step_table([]), gpu=seen, description=started), AnalysisSettings())

    assert (unlogged.bottleneck.kind, untimed.bottleneck.kind, unnamed.bottleneck.kind) == (kind, kind, kind)
    assert early.bottleneck.kind is Kind.UNKNOWN


@pytest.mark.parametrize(("sm", "kind"), [(0.71, Kind.COMPUTE_BOUND), (0.69, Kind.UNKNOWN)])
def test_gpus_that_compute_nearly_all_the_time_are_said_to_where_a_log_times_steps(sm: float, kind: Kind):
    steps = step_table([1.0] * 20)
    seen = gpu_table(steps, {"sm_active_ratio": [sm] * 4, "tensor_active_ratio": [0.3] * 4})
    found = summarise(job_data(steps, gpu=seen, description=DP4), AnalysisSettings())

    assert found.bottleneck.kind is kind


def test_where_steps_are_known_the_advice_asks_for_what_a_step_computes():
    seen = gpus(*[1.0] * 30, sm_active_ratio=0.75, tensor_active_ratio=0.3)
    unlogged = summarise(job_data(step_table([]), gpu=seen), AnalysisSettings()).bottleneck
    by_operations = job_data(step_table([1.0] * 20), gpu=seen, step_source=StepSource.NCCL)
    timed = summarise(by_operations, AnalysisSettings())

    assert "--flops-per-step" in timed.bottleneck.advice
    assert "--flops-per-step" not in unlogged.advice
    assert "progress" in unlogged.advice


@pytest.mark.parametrize(("since", "activity"), [(5, 0.9), (6, 0.5)])
@pytest.mark.parametrize("falls", [True, False])
def test_what_gpus_did_before_they_became_more_or_less_active_is_not_what_a_job_does_now(
    since: int, activity: float, falls: bool
):
    """As in recording alone26: hosts that were late for 17 s were said to limit the job for as long after."""
    before, now = (0.9, 0.5) if falls else (0.5, 0.9)
    seen = gpus(*[before] * 20, *[now] * (since + 1), sm_active_ratio=0.9)
    usual = gpu_activity(seen, step_table([]), np.empty(0, dtype=np.int64))
    # The last sample may be of something else in part.
    assert usual.of_gpus(GpuColumn.GRAPHICS_ACTIVE)[0] == pytest.approx(activity if falls else 1.4 - activity)
