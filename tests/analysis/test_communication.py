"""Communication from timers: what is counted, what is nested, what is exposed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import LLAMA3_8B, description, infos, job_data, phase_table, step_table

from perfd.analysis.communication.exposed_communication import (
    communication,
    gradient_bytes,
    ring_traffic_bytes,
)
from perfd.analysis.layout.link_bandwidth import data_parallel_link_bytes_per_s
from perfd.analysis.steps.phase_timers import Timers
from perfd.gpu_peaks import load_peaks
from perfd.model import JobDescription, ParallelLayout


def of_timers(extremes, job: JobDescription | None = None, *, by_rank=None, link: float | None = None):
    steps = step_table([1.0] * 6)
    timers = Timers.of(phase_table(steps, extremes, by_rank), steps, np.arange(1, 6))
    return communication(timers, np.ones(5), job, link)


def test_collectives_of_the_longest_rank_are_the_share():
    result = of_timers({"all-grads-sync": (0.09, 0.10), "params-all-gather": (0.02, 0.03)})
    assert result.share_ratio == pytest.approx(0.13)
    assert result.source == "timers: all-grads-sync, params-all-gather"


def test_a_collective_inside_another_is_counted_once():
    result = of_timers(
        {
            "backward-reduce-model-grads": (0.2, 0.2),
            "backward-params-all-reduce": (0.18, 0.18),
            "backward-embedding-all-reduce": (0.02, 0.02),
        }
    )
    assert result.share_ratio == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["backward_allreduce", "bwd_allreduce"])
def test_deepspeed_timers_are_known_in_both_spellings(name: str):
    assert of_timers({name: (0.1, 0.1), "bwd": (0.5, 0.5)}).share_ratio == pytest.approx(0.1)


def test_waiting_for_another_stage_is_no_part_of_the_share():
    result = of_timers({"all-grads-sync": (0.1, 0.1), "forward-recv": (0.2, 0.3)})
    assert result.share_ratio == pytest.approx(0.1)
    assert result.p2p_wait_ratio == pytest.approx(0.3)


def test_waiting_by_rank_is_summed_over_the_rows_of_one_rank():
    nan = float("nan")
    result = of_timers({}, by_rank={"forward-recv": [nan, 0.2, nan], "backward-recv": [0.1, 0.15, nan]})
    assert result.p2p_wait_ratio == pytest.approx(0.35)


def test_without_timers_nothing_is_known():
    result = of_timers({"somebody's own timer": (0.1, 0.2)})
    assert result.share_ratio is None
    assert result.exposed_ratio is None
    assert result.source is None


def test_exposed_is_known_only_when_no_collective_hides_in_compute():
    timers = {"all-grads-sync": (0.1, 0.1)}
    assert of_timers(timers, description(dp=8)).exposed_ratio == pytest.approx(0.1)
    assert of_timers(timers, description(dp=8, tp=2)).exposed_ratio is None
    assert of_timers(timers, description(dp=8, ep=None)).exposed_ratio is None


def test_a_timer_that_runs_now_and_then_is_no_phase_of_the_step():
    steps = step_table([1.0] * 11)
    phases = phase_table(steps, {"all-grads-sync": (0.1, 0.1), "embedding-grads-all-reduce": (0.5, 0.5)})
    phases.max_s["embedding-grads-all-reduce"][3:] = np.nan
    result = communication(Timers.of(phases, steps, np.arange(1, 11)), np.ones(10), None)
    assert result.share_ratio == pytest.approx(0.1)


def test_overlapped_reduction_is_labelled_and_gives_no_bandwidth():
    job = replace(description(LLAMA3_8B, dp=8), arguments={"overlap_grad_reduce": "True"})
    result = of_timers({"all-grads-sync": (0.1, 0.1)}, job)
    assert "what is left exposed" in (result.source or "")
    assert result.bus_bytes_per_s is None


def test_the_ring_moves_twice_the_buffer_less_a_rank():
    assert ring_traffic_bytes(1e9, 4) == pytest.approx(1.5e9)


def test_gradients_are_reduced_in_fp32_over_the_parameters_of_one_rank():
    job = description(LLAMA3_8B, tp=2, pp=2, dp=8)
    untied = replace(job, arguments={"untie_embeddings_and_output_weights": "True"})
    assert gradient_bytes(untied) == pytest.approx(8.03e9 / 4 * 4, rel=1e-3)
    assert gradient_bytes(replace(untied, arguments=dict(untied.arguments, grad_reduce_in_bf16="True"))) == (
        pytest.approx(8.03e9 / 4 * 2, rel=1e-3)
    )
    assert gradient_bytes(replace(job, framework="torchtitan")) is None
    assert gradient_bytes(description(dp=8)) is None


def test_measured_and_ideal_time_of_the_reduction_stand_side_by_side():
    job = description(LLAMA3_8B, tp=1, pp=1, dp=8)
    size = gradient_bytes(job)
    assert size is not None
    result = of_timers({"all-grads-sync": (0.1, 0.1)}, job, link=450e9)
    assert result.ring_estimate_s == pytest.approx(2 * 7 / 8 * size / 450e9)
    assert result.bus_bytes_per_s == pytest.approx(2 * 7 / 8 * size / 0.1)


def test_the_ring_runs_over_nvlink_inside_a_node_and_over_the_network_across_nodes():
    peaks, gpus = load_peaks(), infos("NVIDIA H100 80GB HBM3", 64)
    job = job_data(step_table([]), gpu_infos=gpus)
    every = [info for node in gpus.values() for info in node]

    def link(**sizes: int) -> float | None:
        return data_parallel_link_bytes_per_s(ParallelLayout(**sizes), every, job, peaks, 50e9)

    assert link(tp=1, pp=8, dp=8) == pytest.approx(450e9)
    assert link(tp=8, pp=2, dp=4) == pytest.approx(50e9)
    assert link(tp=8) is None
