"""A job that is silent because one rank works while the others wait for it does not hang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from analysis.jobs import description, job_data, step_table

from perfd.analysis.data.job_data import GpuKey, GpuTable, JobData, LaunchTable, StepTable
from perfd.analysis.diagnosis import AnalysisSettings, summarise
from perfd.analysis.findings import Kind
from perfd.analysis.hang import hang
from perfd.analysis.hang.silence import patience_s
from perfd.analysis.steps import timed_by_arrival
from perfd.model import Event, EventKind, GpuColumn
from perfd.thresholds import THRESHOLDS
from tests.support.nccl_records import NcclTime

RANKS = 4
STEPS = step_table([1.0] * 20)
NOTHING = (0.0, 0.0, 0.0, 0.0)


def silent(
    seconds: float,
    *,
    behind: int | None = 0,
    io_bytes_per_s: tuple[float, ...] | None = NOTHING,
    computing: tuple[float, ...] = NOTHING,
    asleep: tuple[float, ...] = (np.nan,) * RANKS,
    running: tuple[float, ...] | None = None,
    age_s: float = 0.5,
    of_others_age_s: float = 0.5,
    steps: StepTable | None = None,
) -> JobData:
    """All ranks but one wait in NCCL.

    `computing` is the tensor activity of their GPUs, `running` their share of time with a kernel, and
    `asleep` that of their hosts without work.
    """
    keys = [GpuKey(node="n", gpu=str(rank), rank=rank) for rank in range(RANKS)]
    times_s = 1000 + np.arange(60.0)
    # Until the silence began all computed.
    before = (times_s < times_s[-1] - seconds)[:, None]
    tensor = np.where(before, 0.5, np.array(computing)).astype(np.float32)
    metrics = {GpuColumn.TENSOR_ACTIVE: tensor}
    if running is not None:
        metrics[GpuColumn.BUSY] = np.where(before, 1.0, np.array(running)).astype(np.float32)
    table = None
    if io_bytes_per_s is not None:
        shape = (4, RANKS)
        table = LaunchTable(
            rank=np.arange(RANKS),
            span_s=np.broadcast_to(np.array([2.0, 4.0, 10.0, 60.0])[:, None], shape),
            asleep_ratio=np.broadcast_to(np.array(asleep), shape),
            loader_busy_ratio=np.full(shape, np.nan),
            loader_workers=np.full(RANKS, np.nan),
            age_s=np.array([age_s] + [of_others_age_s] * (RANKS - 1)),
            # Before, the job may have written or not.
            io_bytes_per_s=np.array([io_bytes_per_s, NOTHING, NOTHING, NOTHING]),
        )
    return job_data(
        STEPS if steps is None else steps,
        description=description(world_size=RANKS, dp=RANKS),
        log_silent_s=seconds,
        nccl=[
            NcclTime(
                rank=rank,
                busy_s=1,
                span_s=60,
                lost_operations=0,
                operations=4999 if rank == behind else 5000,
                still_s=seconds,
            )
            for rank in range(RANKS)
        ],
        launches=table,
        gpu=GpuTable(time_unix_s=times_s, gpus=keys, metrics=metrics),
    )


def test_a_rank_that_does_nothing_hangs_the_job_within_eight_seconds() -> None:
    found = hang(silent(8))
    assert found is not None
    assert found.culprits == (0,)


def test_a_rank_whose_host_is_not_read_may_work_and_is_named_only_after_a_minute() -> None:
    # On two H100s rank 0 validated alone for 28 s on its host (2026-11-25).
    early = hang(silent(28, io_bytes_per_s=None))
    assert early is not None
    assert early.culprits == ()
    assert "rank 0 does meanwhile is unknown, because its host is not read" in early.evidence[-1]
    late = hang(silent(THRESHOLDS.hang_certain_s, io_bytes_per_s=None))
    assert late is not None
    assert late.culprits == (0,)


@pytest.mark.parametrize("seconds", [8, 30, 90, 899])
def test_the_rank_that_writes_the_checkpoint_of_all_does_not_hang(seconds: float) -> None:
    assert hang(silent(seconds, io_bytes_per_s=(2e8, 0.0, 0.0, 0.0))) is None


def test_a_rank_that_writes_no_more_than_a_log_or_did_so_long_ago_hangs() -> None:
    least = THRESHOLDS.hang_io_bytes_per_s
    assert hang(silent(8, io_bytes_per_s=(least, 0.0, 0.0, 0.0))) is None
    assert hang(silent(8, io_bytes_per_s=(0.99 * least, 0.0, 0.0, 0.0))) is not None
    assert hang(silent(8, io_bytes_per_s=(2e8, 0.0, 0.0, 0.0), age_s=5.0)) is None
    assert hang(silent(8, io_bytes_per_s=(2e8, 0.0, 0.0, 0.0), age_s=5.1)) is not None
    assert hang(silent(900, io_bytes_per_s=(2e8, 0.0, 0.0, 0.0))) is not None


def test_a_silent_rank_hangs_a_job_unless_all_ranks_are_silent() -> None:
    found = hang(silent(30, age_s=20.0))
    assert found is not None
    assert found.culprits == (0,)
    # The job was killed, or its agents cannot reach the aggregator.
    assert hang(silent(30, age_s=20.0, of_others_age_s=5.1)) is None
    assert hang(silent(30, age_s=20.0, of_others_age_s=5.0)) is not None


def test_what_another_rank_writes_excuses_nobody() -> None:
    found = hang(silent(8, io_bytes_per_s=(0.0, 2e8, 2e8, 2e8)))
    assert found is not None
    assert found.culprits == (0,)


def test_a_rank_that_computes_on_its_host_while_its_gpu_is_idle_does_not_hang() -> None:
    # As while it pickles a checkpoint in memory; the others spin on their hosts, and their GPUs wait.
    waiting = (0.0, 1.0, 1.0, 1.0)
    for seconds in (8.0, 30.0, 899.0):
        assert hang(silent(seconds, asleep=(0.49, 0.0, 0.0, 0.0), running=waiting)) is None
    for asleep, running in (
        ((0.51, 0.0, 0.0, 0.0), waiting),
        # It waits for its GPU.
        ((0.49, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0)),
    ):
        found = hang(silent(30, asleep=asleep, running=running))
        assert found is not None
        assert found.culprits == (0,)
    assert hang(silent(900, asleep=(0.49, 0.0, 0.0, 0.0), running=waiting)) is not None


@pytest.mark.parametrize(
    ("seconds", "asleep", "hangs"),
    [(30.0, 0.49, False), (59.0, 0.49, False), (60.0, 0.49, True), (8.0, 0.51, True)],
)
def test_where_gpus_are_not_read_a_rank_whose_host_runs_may_compute_for_a_minute(
    seconds: float, asleep: float, hangs: bool
) -> None:
    """As in recording validated2 with a sample of GPUs in ten seconds: rank 0 validates alone for 28 s."""
    found = hang(silent(seconds, asleep=(asleep, 0.0, 0.0, 0.0)))
    assert (found is not None) is hangs


def test_where_nobody_is_known_to_be_missing_any_rank_may_be_the_one() -> None:
    assert hang(silent(30, behind=None)) is not None
    assert hang(silent(30, behind=None, io_bytes_per_s=(0.0, 0.0, 2e8, 0.0))) is None


def test_a_rank_that_evaluates_alone_computes_and_does_not_hang() -> None:
    assert hang(silent(30, computing=(0.4, 0.0, 0.0, 0.0))) is None
    # It is not the one that they wait for.
    found = hang(silent(30, computing=(0.0, 0.4, 0.0, 0.0)))
    assert found is not None
    assert found.culprits == (0,)


@pytest.mark.parametrize(("tensor_ratio", "hangs"), [(0.009, True), (0.011, False)])
def test_tensor_cores_that_are_active_for_one_percent_compute(tensor_ratio: float, hangs: bool) -> None:
    assert (hang(silent(30, computing=(tensor_ratio, 0.0, 0.0, 0.0))) is not None) is hangs


@pytest.mark.parametrize(("less_s", "hangs"), [(1.6, False), (1.4, True)])
def test_counters_may_stand_for_a_second_and_a_half_less_than_the_log(less_s: float, hangs: bool) -> None:
    job, still_s = silent(30), THRESHOLDS.hang_one_rank_silence_s - less_s
    found = hang(replace(job, nccl=replace(job.nccl, still_s=np.full(RANKS, still_s))))
    assert (found is not None) is hangs


def test_a_log_that_prints_rarely_says_nothing_while_operations_begin() -> None:
    paused = (0.0,) * RANKS

    def job(still_s: float) -> JobData:
        found = silent(30, behind=None, running=paused)
        return replace(found, log_silent_s=900.0, nccl=replace(found.nccl, still_s=np.full(RANKS, still_s)))

    assert hang(job(12.0)) is None
    found = hang(job(70.0))
    assert found is not None
    assert found.evidence[0].startswith("Nothing has moved for 72 s")


def test_a_pause_of_all_ranks_that_was_as_long_before_is_no_hang_though_no_newest_step_shows_it() -> None:
    waiting = (1.0,) * RANKS
    for longest_pause_s, hangs in ((0.0, True), (19.0, True), (21.0, False)):
        job = replace(silent(30, behind=None, running=waiting), longest_pause_s=longest_pause_s)
        assert (hang(job) is not None) is hangs
    # One rank alone is behind: no pause explains that.
    assert hang(replace(silent(30, running=waiting), longest_pause_s=100.0)) is not None


def test_gpus_that_run_no_kernel_are_known_by_utilization_where_gpm_is_read_rarely() -> None:
    job = silent(12, behind=None, running=(0.0,) * RANKS)
    rarely = np.full((len(job.gpu.time_unix_s), RANKS), np.nan, np.float32)
    rarely[::100] = 0.9
    metrics = {GpuColumn.GRAPHICS_ACTIVE: rarely, **job.gpu.metrics}
    assert hang(replace(job, gpu=replace(job.gpu, metrics=metrics))) is None


def test_a_rare_reading_of_the_time_before_a_pause_does_not_stand_for_the_pause() -> None:
    # After its last step a trainer saves, and no GPU runs a kernel.
    job = silent(10.5, behind=None, running=(0.0,) * RANKS)
    rarely = np.full((len(job.gpu.time_unix_s), RANKS), np.nan, np.float32)
    rarely[-10] = 0.45
    metrics = {GpuColumn.GRAPHICS_ACTIVE: rarely, **job.gpu.metrics}
    assert hang(replace(job, gpu=replace(job.gpu, metrics=metrics))) is None


def test_the_first_sample_of_a_pause_is_of_the_time_before_it_too() -> None:
    job = silent(10.5, behind=None, running=(0.0,) * RANKS)
    busy = job.gpu.metrics[GpuColumn.BUSY].copy()
    busy[-11], busy[-10] = 1.0, 0.2
    assert hang(replace(job, gpu=replace(job.gpu, metrics={**job.gpu.metrics, GpuColumn.BUSY: busy}))) is None


def arrived(lines_unix_s: Sequence[float]) -> StepTable:
    """Lines that say a step and no time."""
    table = step_table([1.0] * len(lines_unix_s), time_unix_s=lines_unix_s)
    return timed_by_arrival(replace(table, step_time_s=np.full(len(table), np.nan)))


def test_where_lines_have_no_times_it_is_found_as_soon_by_when_they_came() -> None:
    # Two lines a second, read together; a time covers at least thirty readings.
    steps = arrived([1000.0 + at // 2 for at in range(200)])
    assert np.nanmax(steps.step_time_s * steps.steps_covered) >= 30
    found = hang(silent(8, steps=steps))
    assert found is not None
    assert found.culprits == (0,)


def test_where_lines_come_rarely_or_paused_before_it_takes_as_long_as_with_times() -> None:
    rarely = arrived([1000 + 4.0 * at for at in range(100)])
    assert hang(silent(19, steps=rarely)) is None
    assert hang(silent(21, steps=rarely)) is not None
    # Of a buffer that is written each 20 s, many lines come at once.
    buffered = arrived([1000 + 20.0 * (at // 40) for at in range(400)])
    assert hang(silent(99, steps=buffered)) is None
    evaluated = arrived([1000 + 0.5 * at + (12.0 if at > 150 else 0.0) for at in range(300)])
    assert hang(silent(18, steps=evaluated)) is None
    assert hang(silent(19, steps=evaluated)) is not None


def test_a_job_without_gpus_and_nccl_hangs_after_a_quarter_of_an_hour_in_which_nobody_works() -> None:
    least_s = THRESHOLDS.log_silent_hang_s
    nothing_else = GpuTable(time_unix_s=np.zeros(0), gpus=[], metrics={})

    def alone(seconds: float, **fields: Any) -> JobData:
        return replace(silent(seconds, **fields), gpu=nothing_else, nccl=job_data(STEPS).nccl)

    asleep = (1.0,) * RANKS
    found = hang(alone(least_s, asleep=asleep))
    assert found is not None
    assert not found.culprits
    assert "No rank's process runs, reads or writes (kernel)" in found.evidence[-1]
    headline = summarise(alone(least_s, asleep=asleep), AnalysisSettings()).bottleneck
    assert (headline.kind, headline.confidence) == (Kind.HANG, 0.4)
    unseen = hang(alone(least_s, io_bytes_per_s=None))
    assert unseen is not None
    assert "No rank is seen to work" in unseen.evidence[-1]
    assert hang(alone(least_s - 1, asleep=asleep)) is None
    assert hang(alone(least_s, asleep=(1.0, 1.0, 1.0, 0.5))) is None
    assert hang(alone(least_s, asleep=asleep, io_bytes_per_s=(0.0, 0.0, 2e8, 0.0))) is None
    assert hang(replace(alone(least_s, asleep=asleep), longest_pause_s=least_s)) is None
    assert hang(replace(alone(least_s, asleep=asleep), ended_unix_s=3000.0)) is None


def test_an_unknown_cause_of_a_job_that_stands_says_so() -> None:
    def said(job: JobData) -> str:
        found = summarise(job, AnalysisSettings()).bottleneck
        assert found.kind is Kind.UNKNOWN
        return found.evidence[0]

    def alone(seconds: float) -> JobData:
        return job_data(STEPS, log_silent_s=seconds)

    least_s = patience_s(job_data(STEPS))
    newest = int(STEPS.step[-1])
    still = f"No step since step {newest}: longer than any earlier pause of this job."
    assert said(alone(least_s)) == still
    assert said(alone(least_s - 0.1)) != still
    begun = Event(
        kind=EventKind.CHECKPOINT_STARTED, time_unix_ns=round(STEPS.time_unix_s[-1] * 1e9) + 1, message=""
    )
    assert said(replace(alone(least_s), events=(begun,))) != still
    end_s = float(STEPS.time_unix_s[-1]) + 76.0
    ended = Event(
        kind=EventKind.JOB_ENDED, time_unix_ns=round(end_s * 1e9), message="", values={"exit_code": 1.0}
    )
    over = replace(alone(0.0), ended_unix_s=end_s, events=(ended,))
    assert said(over) == (
        "The job ended with exit code 1 after 76 s without a step, longer than its earlier pauses."
    )
