"""Which rank is named, and when nobody is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import gpu_table, phase_table, step_table

from perfd.analysis.steps.activity_by_gpu import GpuActivity, gpu_activity
from perfd.analysis.steps.phase_timers import Timers
from perfd.analysis.stragglers.peer_comparison import (
    Pattern,
    Straggler,
    compare_activity,
    stragglers_by_timers,
)
from perfd.model import ParallelLayout

DP8 = ParallelLayout(world_size=8, pp=1, dp=8)


def stragglers_by_activity(activity: GpuActivity, layout: ParallelLayout) -> Sequence[Straggler]:
    return compare_activity(activity, layout).stragglers


def activity_of(noise: float = 0.0, steps: int = 20, **metrics: list[float]) -> GpuActivity:
    """Activity of each rank, the same in each step but for noise."""
    table = step_table([1.0] * steps)
    gpu = gpu_table(table, metrics)
    rng = np.random.default_rng(3)
    noisy = {
        name: values * (1 + noise * rng.standard_normal(values.shape)).astype(np.float32)
        for name, values in gpu.metrics.items()
    }
    return gpu_activity(replace(gpu, metrics=noisy), table, np.arange(1, steps))


def one_busy(rank: int, count: int = 8, excess: float = 1.3) -> dict[str, list[float]]:
    tensor, streaming = [0.3] * count, [0.7] * count
    tensor[rank], streaming[rank] = 0.3 * excess, 0.85
    return {"tensor_active_ratio": tensor, "sm_active_ratio": streaming}


@pytest.mark.parametrize("rank", range(8))
def test_a_gpu_that_works_while_its_peers_wait_is_named(rank: int):
    found = stragglers_by_activity(activity_of(0.03, **one_busy(rank)), DP8)
    assert [(one.rank, one.pattern) for one in found] == [(rank, Pattern.BUSY_LONGER)]
    assert found[0].ratio == pytest.approx(1.3, rel=0.05)
    assert found[0].wait_ratio == pytest.approx(1 - 0.7 / 0.85, rel=0.1)


@pytest.mark.parametrize("rank", [0, 7])
def test_a_gpu_that_idles_while_its_peers_wait_is_named(rank: int):
    active = [0.95] * 8
    active[rank] = 0.7
    found = stragglers_by_activity(activity_of(0.03, graphics_active_ratio=active), DP8)
    assert [(one.rank, one.pattern) for one in found] == [(rank, Pattern.IDLE)]
    assert found[0].wait_ratio == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("seed", range(5))
def test_noise_names_nobody(seed: int):
    rng = np.random.default_rng(seed)
    table = step_table([1.0] * 30)
    gpu = gpu_table(table, {"tensor_active_ratio": [0.3] * 8, "sm_active_ratio": [0.8] * 8})
    noisy = {
        name: values * (1 + 0.2 * rng.standard_normal(values.shape)).astype(np.float32)
        for name, values in gpu.metrics.items()
    }
    activity = gpu_activity(replace(gpu, metrics=noisy), table, np.arange(1, 30))
    assert stragglers_by_activity(activity, DP8) == ()


@pytest.mark.parametrize(("spread", "named"), [(0.01, [3]), (0.06, [])])
def test_a_gpu_that_differs_as_healthy_ones_do_is_not_named(spread: float, named: list[int]):
    """In all steps, and beyond their scatter: of many GPUs that differ, one differs most."""
    differing = [1 + spread * share for share in (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 0.0)]
    differing[3] = 1.17
    activity = activity_of(
        tensor_active_ratio=[0.3 * one for one in differing], sm_active_ratio=[0.6 * one for one in differing]
    )
    assert [one.rank for one in stragglers_by_activity(activity, DP8)] == named


def test_a_slow_rank_that_changes_from_step_to_step_is_nobodys_fault():
    # Sequence lengths make another rank the longest in each step.
    table = step_table([1.0] * 24)
    gpu = gpu_table(table, {"tensor_active_ratio": [0.3] * 8, "sm_active_ratio": [0.7] * 8})
    for step in range(24):
        rows = slice(4 * step, 4 * step + 4)
        gpu.metrics["tensor_active_ratio"][rows, step % 8] *= 1.5
        gpu.metrics["sm_active_ratio"][rows, step % 8] *= 1.2
    assert stragglers_by_activity(gpu_activity(gpu, table, np.arange(1, 24)), DP8) == ()


def stepwise(ratios: list[float]) -> GpuActivity:
    """Rank 2 of 8 with another activity in each step, the others as ever."""
    table = step_table([1.0] * (len(ratios) + 1))
    gpu = gpu_table(table, {"tensor_active_ratio": [0.3] * 8, "sm_active_ratio": [0.7] * 8})
    gpu.metrics["tensor_active_ratio"][4:, 2] *= np.repeat(ratios, 4)
    gpu.metrics["sm_active_ratio"][4:, 2] *= np.repeat(ratios, 4)
    return gpu_activity(gpu, table, np.arange(1, len(ratios) + 1))


def test_a_rank_that_was_slow_in_most_steps_and_is_not_in_the_newest_is_not_named_any_more():
    assert len(stragglers_by_activity(stepwise([1.0] * 2 + [1.3] * 22), DP8)) == 1
    assert stragglers_by_activity(stepwise([1.3] * 20 + [1.0] * 4), DP8) == ()


def test_a_rank_that_is_slow_in_most_steps_but_not_in_nearly_all_is_not_named():
    assert stragglers_by_activity(stepwise([1.3, 1.3, 1.0] * 5), DP8) == ()
    assert len(stragglers_by_activity(stepwise([1.3, 1.3, 1.3, 1.3, 1.3, 1.0] * 3), DP8)) == 1


def test_a_difference_within_the_scatter_of_the_steps_is_not_named():
    assert stragglers_by_activity(stepwise([1.06, 1.06, 1.06, 1.3, 1.5, 1.6] * 2), DP8) == ()
    assert len(stragglers_by_activity(stepwise([1.12, 1.12, 1.12, 1.13, 1.13, 1.13] * 2), DP8)) == 1


def test_a_heavy_stage_is_no_straggler():
    tensor, streaming = [0.3] * 4 + [0.5] * 4, [0.5] * 4 + [0.8] * 4
    activity = activity_of(tensor_active_ratio=tensor, sm_active_ratio=streaming)
    assert stragglers_by_activity(activity, ParallelLayout(world_size=8, pp=2, dp=4)) == ()
    # As one group, half of it would stand against the other half: that names nobody either.
    assert stragglers_by_activity(activity, DP8) == ()


def test_a_missing_peer_makes_the_verdict_abstain():
    metrics = one_busy(2)
    assert stragglers_by_activity(activity_of(**metrics), ParallelLayout(world_size=16, pp=1, dp=16)) == ()
    metrics["tensor_active_ratio"][5] = float("nan")
    assert stragglers_by_activity(activity_of(**metrics), DP8) == ()


def test_an_unknown_layout_or_rank_makes_the_verdict_abstain():
    activity = activity_of(**one_busy(2))
    assert stragglers_by_activity(activity, ParallelLayout(world_size=8)) == ()
    nameless = [replace(key, rank=None) for key in activity.gpus]
    assert stragglers_by_activity(replace(activity, gpus=nameless), DP8) == ()


def test_a_few_steps_are_not_enough():
    assert stragglers_by_activity(activity_of(steps=5, **one_busy(2)), DP8) == ()


def test_on_one_node_five_sampled_steps_are_enough_and_on_several_ten():
    two_nodes = ParallelLayout(world_size=16, pp=1, dp=16)
    found = [
        bool(stragglers_by_activity(activity_of(steps=steps, **one_busy(2, count)), layout))
        for steps, count, layout in ((6, 8, DP8), (6, 16, two_nodes), (11, 16, two_nodes))
    ]
    assert found == [True, False, True]


def test_a_gpu_that_its_host_keeps_waiting_is_named_after_ten_sampled_steps():
    active = [0.95] * 7 + [0.7]
    found = [
        bool(stragglers_by_activity(activity_of(steps=steps, graphics_active_ratio=active), DP8))
        for steps in (10, 11)
    ]
    assert found == [False, True]


def test_permuting_ranks_permutes_the_name():
    order = np.random.default_rng(5).permutation(8)
    activity = activity_of(0.02, **one_busy(2))
    shuffled = replace(
        activity,
        gpus=[activity.gpus[index] for index in order],
        metrics={name: values[:, order] for name, values in activity.metrics.items()},
    )
    assert stragglers_by_activity(shuffled, DP8)[0].rank == 2
    assert stragglers_by_activity(shuffled, DP8)[0].ratio == stragglers_by_activity(activity, DP8)[0].ratio


def by_rank(forward: list[float], backward: list[float], layout: ParallelLayout):
    steps = step_table([1.0] * 12)
    phases = phase_table(steps, by_rank={"forward-compute": forward, "backward-compute": backward})
    return stragglers_by_timers(Timers.of(phases, steps, np.arange(1, 12)), np.ones(11), layout)


def test_timers_of_each_rank_name_the_slow_one_and_what_it_costs():
    forward, backward = [0.25] * 8, [0.5] * 8
    forward[6], backward[6] = 0.3, 0.6
    found = by_rank(forward, backward, DP8)
    assert [one.rank for one in found] == [6]
    assert found[0].ratio == pytest.approx(1.2)
    assert found[0].wait_ratio == pytest.approx(0.15)


def test_a_slow_rank_that_costs_little_is_not_named():
    forward, backward = [0.02] * 8, [0.04] * 8
    forward[6], backward[6] = 0.03, 0.06
    assert by_rank(forward, backward, DP8) == ()


def test_timers_compare_ranks_of_one_stage_only():
    forward, backward = [0.1, 0.1, 0.1, 0.1, 0.2, 0.2, 0.2, 0.2], [0.2, 0.2, 0.2, 0.2, 0.4, 0.4, 0.4, 0.4]
    layout = ParallelLayout(world_size=8, pp=2, dp=4)
    assert by_rank(forward, backward, layout) == ()
    forward[1] = 0.2
    assert [one.rank for one in by_rank(forward, backward, layout)] == [1]


def test_samples_outside_of_steady_steps_do_not_count():
    steps = step_table([1.0] * 10)
    gpu = gpu_table(steps, {"sm_active_ratio": [0.8]})
    gpu.metrics["sm_active_ratio"][:4] = 0.0
    activity = gpu_activity(gpu, steps, np.arange(1, 10))
    assert activity.of_gpus("sm_active_ratio") == pytest.approx([0.8])
    assert activity.source == "steady steps"


def test_a_log_whose_times_do_not_meet_the_samples_gives_no_activity():
    steps = step_table([1.0] * 10)
    elsewhere = replace(gpu_table(steps, {"sm_active_ratio": [0.8]}), time_unix_s=np.arange(40.0))
    activity = gpu_activity(elsewhere, steps, np.arange(1, 10))
    assert activity.source is None
    assert np.isnan(activity.of_gpus("sm_active_ratio")).all()


def named_by_phases(ranks: int, **phases: list[float]) -> list[int]:
    """Who is named by the times of a training loop's own phases, with a little scatter."""
    steps = step_table([1.0] * 40)
    table = phase_table(steps, by_rank=phases)
    rng = np.random.default_rng(ranks)
    noisy = {
        name: values * (1 + 0.02 * rng.standard_normal(values.shape))
        for name, values in table.by_rank_s.items()
    }
    timers = Timers.of(replace(table, by_rank_s=noisy), steps, np.arange(40))
    found = stragglers_by_timers(timers, np.ones(40), ParallelLayout(world_size=ranks, pp=1, dp=ranks))
    return [one.rank for one in found]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_a_rank_that_waits_for_another_ones_input_while_gradients_are_reduced_is_not_named(ranks: int):
    waits = [0.3] + [0.6] * (ranks - 1)
    assert named_by_phases(ranks, forward=[0.2] * ranks, backward=waits) == []


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_nor_is_one_that_waits_while_parameters_are_gathered(ranks: int):
    waits = [0.2] + [0.5] * (ranks - 1)
    assert named_by_phases(ranks, forward=waits, backward=[0.3] * ranks) == []


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_one_that_is_longer_in_forward_by_what_the_others_are_in_backward_is_named_among_three(ranks: int):
    forward, backward = [0.2] * ranks, [0.6] * ranks
    forward[1], backward[1] = 0.4, 0.4
    assert named_by_phases(ranks, forward=forward, backward=backward) == ([1] if ranks > 2 else [])


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_one_that_is_slow_in_backward_while_the_others_wait_in_forward_is_not_taken_for_them(ranks: int):
    forward, backward = [0.4] * ranks, [0.4] * ranks
    forward[1], backward[1] = 0.2, 0.6
    assert named_by_phases(ranks, forward=forward, backward=backward) == []


def test_phases_without_waiting_name_one_of_two():
    phases = {"forward-compute": [0.2, 0.3], "backward-compute": [0.4, 0.6]}
    assert named_by_phases(2, **phases) == [1]
