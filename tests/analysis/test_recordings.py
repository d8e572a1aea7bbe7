"""The recordings of real Megatron-LM runs, against what Megatron-LM itself printed."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import recorded_job

from perfd.analysis.data.job_data import GpuTable, JobData
from perfd.analysis.diagnosis import AnalysisSettings, CheckState, JobSummary, summarise
from perfd.analysis.findings import Culprit, Kind
from perfd.gpu_peaks import load_peaks

# Iterations 8 to 10 ran under a profiler and 11 wrote its trace; the log of these tests does not say so.
UNPROFILED = [3, 4, 5, 6, 7, 12, 13, 14, 15, 16, 17, 18]


@functools.lru_cache
def recorded(name: str) -> tuple[JobData, JobSummary]:
    job = recorded_job(name)
    return job, summarise(job, AnalysisSettings(peaks=load_peaks()))


@pytest.mark.parametrize("name", ["dp4", "dp4_slow2", "pp2dp2", "pp4_few"])
def test_model_flops_are_those_that_megatron_printed_for_the_same_steps(name: str):
    job, summary = recorded(name)
    dropped = {step for steps in summary.steps.dropped.values() for step in steps}
    steady = [step for step in job.steps.step.tolist() if step not in dropped]
    printed = float(np.median([job.steps.flops_per_s_per_gpu[step - 1] for step in steady]))
    assert summary.efficiency.model_flops_per_s_per_gpu == pytest.approx(printed, rel=0.005)
    assert summary.efficiency.mfu_ratio == pytest.approx(printed / 989.4e12, rel=0.005)
    assert summary.efficiency.flops_check is not None
    assert summary.efficiency.flops_check.agrees


@pytest.mark.parametrize("name", ["dp4", "dp4_slow2", "pp2dp2", "pp4_few"])
def test_profiled_steps_do_not_matter_although_nothing_marks_them(name: str):
    job, summary = recorded(name)
    reference = float(np.median([job.steps.step_time_s[step - 1] for step in UNPROFILED]))
    assert summary.step_time_s.median == pytest.approx(reference, rel=0.01)
    assert 11 in summary.steps.dropped["outlier"]


def test_theory_of_few_micro_batches_is_exact():
    assert recorded("pp4_few")[1].pipeline.bubble_theory_ratio == 3 / 7
    assert recorded("pp2dp2")[1].pipeline.bubble_theory_ratio == 1 / 9
    assert recorded("dp4")[1].pipeline.bubble_theory_ratio == 0.0
    assert recorded("dp4")[1].pipeline.stall_ratio is None


@pytest.mark.parametrize("name", ["pp2dp2", "pp4_few"])
def test_the_stall_is_consistent_with_the_timers_of_each_step(name: str):
    job, summary = recorded(name)
    most, least = job.phases.max_s, job.phases.min_s
    window = most["forward-backward"] - most["all-grads-sync"] - most["embedding-grads-all-reduce"]
    steady = [step - 1 for step in UNPROFILED]
    at_least = 1 - (most["forward-compute"] + most["backward-compute"]) / window
    at_most = 1 - (least["forward-compute"] + least["backward-compute"]) / window
    low, high = np.median(at_least[steady]), np.median(at_most[steady])
    assert [stage.stall_ratio for stage in summary.pipeline.stages] == pytest.approx([low, high], abs=0.01)
    assert low <= summary.pipeline.stall_ratio <= high
    assert summary.pipeline.stall_ratio > summary.pipeline.bubble_theory_ratio


def test_few_micro_batches_are_a_bubble_by_design_and_nobodys_fault():
    bottleneck = recorded("pp4_few")[1].bottleneck
    assert bottleneck.kind is Kind.PIPELINE_BUBBLE
    assert bottleneck.culprits == ()
    assert "more micro-batches" in bottleneck.advice
    assert "interleave" in bottleneck.advice


def test_the_slow_rank_is_named():
    summary = recorded("dp4_slow2")[1]
    assert summary.bottleneck.kind is Kind.STRAGGLER
    assert summary.bottleneck.culprits == (Culprit(kind="rank", id=2),)
    assert summary.bottleneck.confidence >= 0.8
    # 11 ms of extra work before each of 4 micro-batches make steps of 684 ms take 776 and more.
    assert 0.1 <= summary.bottleneck.gain_ratio <= 0.25


def test_a_slow_gpu_is_not_called_slow_input_where_no_gpu_is_read():
    job, _ = recorded("dp4_slow2")
    unread = replace(job, gpu=GpuTable(time_unix_s=np.empty(0), gpus=(), metrics={}))
    first = summarise(unread, AnalysisSettings(peaks=load_peaks())).bottleneck
    # All that its work took longer is in the timer of the input.
    assert (first.kind, first.gain_ratio) == (Kind.UNKNOWN, pytest.approx(0.15, abs=0.01))
    assert "so does a slow GPU" in first.evidence[-1]


def test_what_a_bubble_costs_at_least_is_that_of_the_schedule_that_its_advice_names():
    _, summary = recorded("pp4_few")
    median, bubble = summary.step_time_s.median, summary.bottleneck
    assert median is not None
    assert summary.pipeline.window_s is not None
    assert bubble.gain_ratio is not None
    # Of the schedule of 4 stages, 4 micro-batches and 2 chunks stages compute 8 in 11.
    computing_s = summary.pipeline.window_s - bubble.gain_ratio * median
    interleaved_s = median - summary.pipeline.window_s + computing_s * 11 / 8
    assert interleaved_s < 0.8 * median
    assert f"At best {1000 * interleaved_s:.1f} ms per step, interleaved, instead of" in bubble.advice


def test_the_timer_of_the_input_is_no_data_loading_where_a_rank_waits_in_it_for_its_gpu():
    _, summary = recorded("dp4_slow2")
    (asked,) = [check for check in summary.checklist.checks if check.name == "data_loading"]
    assert summary.bottleneck.kind is Kind.STRAGGLER
    assert (asked.state, asked.value) == (CheckState.UNKNOWN, "at most 15.0%")
    assert "data loading is" not in summary.checklist.conclusion


@pytest.mark.parametrize("name", ["dp4", "pp2dp2", "pp4_few"])
def test_healthy_jobs_have_no_culprit(name: str):
    for finding in recorded(name)[1].findings:
        assert finding.culprits == ()
        assert finding.kind not in {Kind.STRAGGLER, Kind.THROTTLING, Kind.HOST_BOUND}


@pytest.mark.parametrize("name", ["dp4", "pp2dp2"])
def test_the_rest_of_a_healthy_step_is_compute(name: str):
    assert recorded(name)[1].bottleneck.kind is Kind.COMPUTE_BOUND


@pytest.mark.parametrize("name", ["dp4", "dp4_slow2", "pp2dp2", "pp4_few"])
def test_tensor_activity_is_an_upper_estimate_of_mfu_on_every_recording(name: str):
    summary = recorded(name)[1]
    assert (
        summary.efficiency.mfu_ratio
        <= summary.efficiency.mfu_upper_ratio
        <= 1.5 * summary.efficiency.mfu_ratio
    )


def test_communication_of_data_parallel_jobs_is_what_the_timers_say():
    job, summary = recorded("dp4")
    timers = job.phases.max_s
    seconds = timers["all-grads-sync"] + timers["embedding-grads-all-reduce"]
    share = np.median((seconds / job.steps.step_time_s)[[step - 1 for step in UNPROFILED]])
    assert summary.communication.share_ratio == pytest.approx(share, rel=0.02)
    assert summary.communication.exposed_ratio == summary.communication.share_ratio
    # 5.1 GB in fp32 over NVLink of 450 GB/s a direction: measured 300.
    assert 200e9 < summary.communication.bus_bytes_per_s < 450e9


def test_every_gpu_of_a_recording_has_its_activity():
    gpus = recorded("dp4")[1].gpus
    assert [gpu.rank for gpu in gpus] == [0, 1, 2, 3]
    for gpu in gpus:
        assert 0.75 < gpu.sm_active_ratio < 0.9
        assert 0.19 < gpu.tensor_active_ratio < 0.25
        assert 550 < gpu.power_w < 700
