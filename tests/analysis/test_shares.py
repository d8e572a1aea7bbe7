"""Data, optimizer, memory, step time and goodput."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from analysis.jobs import description, gpu_table, infos, job_data, phase_table, step_table

from perfd.analysis.diagnosis import AnalysisSettings, summarise
from perfd.analysis.flops.gpu_peak_lookup import PeakTable
from perfd.analysis.steps.phase_timers import Timers
from perfd.analysis.steps.steady_steps import steady_rows
from perfd.analysis.steps.time_breakdown import (
    breakdown,
    data_loading,
    goodput_ratio,
    memory,
    optimizer,
    step_time,
)
from perfd.gpu_peaks import load_peaks
from perfd.model import GpuInfo, MemoryReport, ParallelLayout


def timers_of(extremes=None, by_rank=None):
    steps = step_table([1.0] * 6)
    return Timers.of(phase_table(steps, extremes, by_rank), steps, np.arange(1, 6)), np.ones(5)


def test_the_slowest_rank_sets_the_data_share_and_the_fastest_shows_whether_it_is_one_rank():
    data = data_loading(*timers_of({"batch-generator": (0.01, 0.2)}))
    assert data.share_ratio == pytest.approx(0.2)
    assert data.least_ratio == pytest.approx(0.01)
    assert data.source == "timers: batch-generator"


def test_no_timer_of_data_is_no_share():
    assert data_loading(*timers_of({"optimizer": (0.1, 0.1)})).share_ratio is None


def test_a_rank_that_reads_for_its_tensor_group_is_named_by_its_role():
    layout = ParallelLayout(world_size=4, tp=2, pp=1, dp=2)
    readers = {"batch-generator": [0.2, 0.01, 0.21, 0.01]}
    one_slow = {"batch-generator": [0.4, 0.01, 0.03, 0.01]}
    every_second = {"batch-generator": [0.2, 0.01, 0.01, 0.2]}

    by_design = data_loading(*timers_of(by_rank=readers), layout)
    assert (by_design.reading_tensor_rank, by_design.slow_rank) == (0, None)
    # The other rank of its role reads as much in less time.
    slower = data_loading(*timers_of(by_rank=one_slow), layout)
    assert (slower.reading_tensor_rank, slower.slow_rank) == (None, 0)
    assert data_loading(*timers_of(by_rank=every_second), layout).reading_tensor_rank is None
    # Without tensor groups the same ranks have nothing in common.
    assert data_loading(*timers_of(by_rank=readers), ParallelLayout(dp=4)).reading_tensor_rank is None


def test_the_reader_of_the_only_replica_is_never_called_broken():
    steps = step_table([1.0] * 20)
    table = phase_table(steps, by_rank={"batch-generator": [0.3, 0.01], "forward-compute": [0.6, 0.6]})
    job = job_data(steps, phases=table, description=description(world_size=2, tp=2, pp=1, dp=1, cp=1))

    findings = summarise(job, AnalysisSettings()).findings

    assert not [one for one in findings if any(culprit.kind == "rank" for culprit in one.culprits)]
    loading = next(one for one in findings if any(culprit.kind == "tensor rank" for culprit in one.culprits))
    assert any("reads the data for its group, by design" in sentence for sentence in loading.evidence)


@pytest.mark.parametrize("name", ["optimizer", "step"])
def test_the_optimizer_is_known_in_megatron_and_deepspeed(name: str):
    assert optimizer(*timers_of({name: (0.1, 0.12)})).share_ratio == pytest.approx(0.12)


def test_what_no_timer_of_level_1_holds_is_reported():
    parts = breakdown(*timers_of({"forward-backward": (0.7, 0.8), "optimizer": (0.1, 0.1)}))
    assert parts.unattributed_ratio == pytest.approx(0.1)
    assert parts.forward_ratio is None


def test_the_spread_of_compute_over_ranks_is_reported():
    parts = breakdown(*timers_of({"forward-compute": (0.2, 0.3), "backward-compute": (0.4, 0.42)}))
    assert parts.spread_ratio == pytest.approx(0.12)


@pytest.mark.parametrize("first_rank", [(0.33, 0.65), (0.33, np.nan)])
def test_phases_that_hold_waiting_are_those_of_one_rank(first_rank: tuple[float, float]):
    # What rank 0 waits for in backward is what rank 1 does in forward.
    parts = breakdown(
        *timers_of(by_rank={"forward": [first_rank[0], 0.66], "backward": [first_rank[1], 0.33]})
    )
    assert (parts.forward_ratio, parts.backward_ratio) == pytest.approx((0.66, 0.33))


def test_phases_that_no_rank_shows_both_of_are_the_longest_of_each():
    parts = breakdown(*timers_of(by_rank={"forward": [0.4, np.nan], "backward": [np.nan, 0.5]}))
    assert (parts.forward_ratio, parts.backward_ratio) == pytest.approx((0.4, 0.5))


def test_compute_without_waiting_is_the_longest_of_all_ranks():
    by_rank = {"forward-compute": [0.3, 0.2], "backward-compute": [0.4, 0.6]}
    parts = breakdown(*timers_of(by_rank=by_rank))
    assert (parts.forward_ratio, parts.backward_ratio) == pytest.approx((0.3, 0.6))


@pytest.mark.parametrize(("lines", "known"), [(9, False), (10, True)])
def test_the_jitter_of_fewer_than_ten_lines_is_unknown(lines, known):
    steps = step_table([9.0, *([1.0, 1.01] * lines)[:lines]])
    assert (step_time(steps.step_time_s, steady_rows(steps, ())).jitter_ratio is not None) is known


def test_jitter_sees_the_outliers_that_the_median_does_not():
    times = [1.0, 1.01] * 10
    times[5] = 3.0
    steps = step_table(times)
    result = step_time(steps.step_time_s, steady_rows(steps, ()))
    assert result.median == pytest.approx(1.005, abs=0.006)
    assert result.p95 == pytest.approx(1.01)
    assert result.outlier_ratio == pytest.approx(1 / 19)
    assert 0 < result.jitter_ratio < 0.02


def test_memory_is_that_of_the_fullest_gpu_over_the_whole_run():
    steps = step_table([1.0] * 5)
    gpu = gpu_table(steps, {"memory_used_bytes": [40e9, 72e9]})
    gpu.metrics["memory_used_bytes"][0, 1] = 76e9
    job = job_data(steps, gpu=gpu, gpu_infos=infos("NVIDIA H100 80GB HBM3", 2))
    assert memory(job, load_peaks()).max_used_ratio == pytest.approx(0.95)


def test_the_driver_knows_the_size_better_than_the_table():
    steps = step_table([1.0] * 5)
    gpu = gpu_table(steps, {"memory_used_bytes": [40e9], "memory_total_bytes": [50e9]})
    assert memory(job_data(steps, gpu=gpu), PeakTable()).max_used_ratio == pytest.approx(0.8)


def test_without_nvml_the_allocators_reports_serve_and_are_named_as_the_source():
    reports = [MemoryReport(job="job", step=1, rank=0, allocated_bytes=1e9, max_reserved_bytes=60e9)]
    job = job_data(step_table([1.0]), memory=reports, gpu_infos=infos("NVIDIA H100 80GB HBM3", 2))
    result = memory(job, load_peaks())
    assert result.max_used_ratio == pytest.approx(0.75)
    assert result.source == "allocator, of its rank alone"


def test_a_driver_that_says_zero_does_not_know_the_size():
    reports = [MemoryReport(job="job", step=1, rank=0, max_reserved_bytes=60e9)]
    nothing = [GpuInfo(index=0, name="NVIDIA H100 80GB HBM3", memory_bytes=0)]
    job = job_data(step_table([1.0]), memory=reports, gpu_infos={"n0": nothing})
    assert memory(job, load_peaks()).max_used_ratio == pytest.approx(0.75)
    assert memory(job, PeakTable()).max_used_ratio is None
    steps = step_table([1.0] * 5)
    gpu = gpu_table(steps, {"memory_used_bytes": [40e9], "memory_total_bytes": [0.0]})
    job = job_data(steps, gpu=gpu, gpu_infos=infos("NVIDIA H100 80GB HBM3", 1))
    assert memory(job, load_peaks()).max_used_ratio == pytest.approx(0.5)


def test_timers_of_more_and_fewer_ranks_fit_each_other():
    forward = {"forward-compute": [0.2, 0.3, 0.4]}
    steps = step_table([1.0] * 6)
    few, many = phase_table(steps, None, {"backward-compute": [0.5]}), phase_table(steps, None, forward)
    table = dataclasses.replace(many, by_rank_s={**many.by_rank_s, **few.by_rank_s})
    forward_s, backward_s = Timers.of(table, steps, np.arange(1, 6)).computing_by_rank_s()
    assert forward_s.shape == backward_s.shape == (5, 3)
    assert np.isnan(backward_s[:, 1:]).all()


def test_memory_of_a_gpu_of_unknown_size_is_unknown():
    steps = step_table([1.0] * 5)
    gpu = gpu_table(steps, {"memory_used_bytes": [40e9]})
    assert memory(job_data(steps, gpu=gpu), PeakTable()).max_used_ratio is None


def test_goodput_counts_finished_steps_once_and_at_the_steady_pace():
    times = [5.0] + [1.0] * 9
    steps = step_table(times)
    job = job_data(steps, started_unix_s=1000.0, now_unix_s=1020.0)
    assert goodput_ratio(job, steady_rows(steps, ()), 1.0) == pytest.approx(10 / 20)
    again = step_table(times, step=[1, 2, 3, 4, 5, 4, 5, 6, 7, 8])
    redone = job_data(again, started_unix_s=1000.0, now_unix_s=1020.0)
    assert goodput_ratio(redone, steady_rows(again, ()), 1.0) == pytest.approx(8 / 20)


def test_goodput_without_a_pace_is_unknown():
    steps = step_table([1.0])
    assert goodput_ratio(job_data(steps), steady_rows(steps, ()), None) is None
