"""The bubble in theory, and the stall that timers show, against a simulated 1F1B schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import description, phase_table, step_table

from perfd.analysis.steps.phase_timers import Timers
from perfd.analysis.steps.pipeline_bubble import bubble_theory_ratio, pipeline
from perfd.model import ParallelLayout


def simulate_1f1b(forward: Sequence[float], backward: Sequence[float], micro_batches: int) -> float:
    """The time of a 1F1B schedule without communication, operation by operation."""
    stages = len(forward)
    orders = []
    for stage in range(stages):
        warm_up = min(stages - stage - 1, micro_batches)
        order = [("F", index) for index in range(warm_up)]
        for index in range(micro_batches - warm_up):
            order += [("F", warm_up + index), ("B", index)]
        orders.append(order + [("B", index) for index in range(micro_batches - warm_up, micro_batches)])
    done: dict[tuple[str, int, int], float] = {}
    clocks, position = [0.0] * stages, [0] * stages
    while any(position[stage] < len(orders[stage]) for stage in range(stages)):
        for stage in range(stages):
            if position[stage] == len(orders[stage]):
                continue
            kind, index = orders[stage][position[stage]]
            neighbour = stage - 1 if kind == "F" else stage + 1
            needed = (kind, neighbour, index)
            if 0 <= neighbour < stages and needed not in done:
                continue
            start = max(clocks[stage], done.get(needed, 0.0))
            clocks[stage] = start + (forward if kind == "F" else backward)[stage]
            done[kind, stage, index] = clocks[stage]
            position[stage] += 1
    return max(clocks)


def measured(forward: Sequence[float], backward: Sequence[float], micro_batches: int, *, by_rank: bool):
    """What the analysis says of Megatron's level-2 timers of such a schedule, one rank a stage."""
    stages = len(forward)
    window = simulate_1f1b(forward, backward, micro_batches)
    steps = step_table([window + 0.1] * 8)
    compute = {
        "forward-compute": [micro_batches * time for time in forward],
        "backward-compute": [micro_batches * time for time in backward],
        "forward-backward": [window + 0.05] * stages,
        "all-grads-sync": [0.04] * stages,
        "embedding-grads-all-reduce": [0.01] * stages,
    }
    extremes = {name: (min(values), max(values)) for name, values in compute.items()}
    phases = phase_table(steps, by_rank=compute) if by_rank else phase_table(steps, extremes)
    job = description(world_size=stages, pp=stages, micro_batch_size=1, global_batch_size=micro_batches)
    return pipeline(Timers.of(phases, steps, np.arange(1, 8)), job), window


@pytest.mark.parametrize(
    ("layout", "ratio"),
    [
        ({"pp": 4, "vp": 1, "global_batch_size": 4}, 3 / 7),
        ({"pp": 2, "vp": 1, "global_batch_size": 8}, 1 / 9),
        ({"pp": 4, "vp": 2, "global_batch_size": 8}, 3 / 19),
        ({"pp": 1, "vp": 1, "global_batch_size": 8}, 0.0),
    ],
)
def test_theory_is_the_part_of_the_schedule_that_equal_stages_idle(layout, ratio):
    assert bubble_theory_ratio(ParallelLayout(dp=1, micro_batch_size=1, **layout)) == ratio


def test_theory_is_unknown_without_the_number_of_micro_batches():
    assert bubble_theory_ratio(ParallelLayout(pp=4)) is None
    assert bubble_theory_ratio(ParallelLayout(global_batch_size=8, micro_batch_size=1, dp=1)) is None


@pytest.mark.parametrize("by_rank", [True, False])
def test_equal_stages_stall_as_theory_says(by_rank: bool):
    result, window = measured([0.01] * 4, [0.02] * 4, 8, by_rank=by_rank)
    assert result.stall_ratio == pytest.approx(3 / 11)
    assert result.excess_ratio == pytest.approx(0, abs=1e-9)
    assert result.imbalance_ratio == pytest.approx(0, abs=1e-9)
    assert result.window_excess_ratio == pytest.approx(0, abs=1e-9)
    assert result.window_s == pytest.approx(window)


def test_a_slow_last_stage_is_distinguished_from_the_schedule():
    result, window = measured([0.01, 0.01, 0.01, 0.013], [0.02, 0.02, 0.02, 0.026], 8, by_rank=True)
    assert [stage.stage for stage in result.stages] == [0, 1, 2, 3]
    for stage, compute in zip(result.stages, [0.24, 0.24, 0.24, 0.312], strict=True):
        assert stage.compute_s == pytest.approx(compute)
        assert stage.stall_ratio == pytest.approx(1 - compute / window)
    assert result.stages[3].imbalance_ratio == pytest.approx(0, abs=1e-9)
    assert result.stages[0].imbalance_ratio == pytest.approx(0.072 / window)
    assert result.imbalance_ratio == pytest.approx(0.75 * 0.072 / window)
    assert result.structural_ratio == pytest.approx(result.stall_ratio - result.imbalance_ratio)
    # These stages cannot do better, although equal ones could.
    assert result.window_excess_ratio == pytest.approx(0, abs=1e-6)
    assert result.excess_ratio > 0.05


def test_extremes_bound_the_stall_of_every_stage_and_do_not_number_it():
    forward, backward = [0.012, 0.01, 0.01, 0.013], [0.02, 0.024, 0.02, 0.026]
    exact, _ = measured(forward, backward, 8, by_rank=True)
    bounds, _ = measured(forward, backward, 8, by_rank=False)
    least, most = (stage.stall_ratio for stage in bounds.stages)
    assert [stage.stage for stage in bounds.stages] == [None, None]
    assert [stage.bound for stage in bounds.stages] == ["at_least", "at_most"]
    assert all(least - 1e-9 <= stage.stall_ratio <= most + 1e-9 for stage in exact.stages)
    assert least <= bounds.stall_ratio <= most


def test_the_window_of_a_slow_last_stage_is_predicted_exactly():
    result, _ = measured([0.01, 0.01, 0.01, 0.02], [0.02, 0.02, 0.02, 0.04], 16, by_rank=True)
    assert result.window_excess_ratio == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_an_earlier_slow_stage_hides_part_of_the_fill_so_the_prediction_is_high(slow: int):
    forward, backward = [0.01] * 4, [0.02] * 4
    forward[slow], backward[slow] = 0.02, 0.04
    result, _ = measured(forward, backward, 16, by_rank=True)
    assert 1 / 1.07 - 1 <= result.window_excess_ratio < 0


def test_before_core_0_7_gradients_are_not_in_the_window():
    steps = step_table([2.0] * 6)
    phases = phase_table(
        steps,
        {
            "forward-backward": (1.0, 1.0),
            "all-grads-sync": (0.2, 0.2),
            "forward-compute": (0.25, 0.25),
            "backward-compute": (0.5, 0.5),
        },
    )
    timers = Timers.of(phases, steps, np.arange(1, 6))
    job = description(world_size=2, pp=2)
    stalls = {
        version: pipeline(timers, replace(job, framework_version=version)).stall_ratio
        for version in ("0.6.0", "0.7.0", None)
    }
    assert stalls["0.6.0"] == pytest.approx(0.25)
    assert stalls["0.7.0"] == stalls[None] == pytest.approx(1 - 0.75 / 0.8)


def test_without_a_pipeline_there_is_no_stall():
    steps = step_table([1.0] * 6)
    phases = phase_table(steps, {"forward-backward": (0.9, 0.9), "forward-compute": (0.3, 0.3)})
    result = pipeline(Timers.of(phases, steps, np.arange(1, 6)), description(pp=1))
    assert result.bubble_theory_ratio == 0.0
    assert result.stall_ratio is None
    assert result.source is None


def test_timers_of_level_1_give_theory_alone():
    steps = step_table([1.0] * 6)
    phases = phase_table(steps, {"forward-backward": (0.9, 0.9)})
    job = description(pp=4, world_size=4, micro_batch_size=1, global_batch_size=4)
    result = pipeline(Timers.of(phases, steps, np.arange(1, 6)), job)
    assert result.bubble_theory_ratio == 3 / 7
    assert result.stall_ratio is None
