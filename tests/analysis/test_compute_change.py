"""Since when a stage or rank computes longer, and what the advice then is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import description, job_data, phase_table, step_table
from hypothesis import given
from hypothesis import strategies as st

from perfd.analysis.data.job_data import PhaseTable, StepTable
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.analysis.findings import Kind
from perfd.analysis.steps import ComputeChange, Timers, compute_change
from perfd.model import ParallelLayout

STAGES = ParallelLayout(world_size=4, tp=1, pp=4, dp=1)


def timers(busy: np.ndarray, steps: StepTable) -> PhaseTable:
    """Forward a third of the time and backward two."""
    table = phase_table(steps)
    return replace(table, by_rank_s={"forward-compute": busy / 3, "backward-compute": 2 * busy / 3})


def found(busy: np.ndarray, parallel: ParallelLayout = STAGES) -> ComputeChange | None:
    steps = step_table([1.0] * len(busy))
    rows = np.arange(len(busy))
    return compute_change(Timers.of(timers(busy, steps), steps, rows), steps.step, parallel)


def even(count: int, *, seed: int = 1) -> np.ndarray:
    """Half a second on each of four ranks, with a scatter of 1%."""
    return np.random.default_rng(seed).normal(0.5, 0.005, (count, 4))


@pytest.mark.parametrize("since", [6, 20, 35])
def test_a_stage_that_changed_is_named_with_the_step(since: int) -> None:
    busy = even(40)
    busy[since - 1 :, 2] *= 1.3

    change = found(busy)

    assert change is not None
    assert (change.stage, change.rank, change.since_step) == (2, None, since)
    assert change.growth_ratio == pytest.approx(0.3, abs=0.02)


def test_a_rank_that_changed_within_its_stage_is_named_itself() -> None:
    busy = even(40)
    busy[19:, 3] *= 1.5

    change = found(busy, ParallelLayout(world_size=4, tp=1, pp=2, dp=2))

    assert change is not None
    assert (change.stage, change.rank, change.since_step) == (None, 3, 20)


def test_without_stages_ranks_are_compared() -> None:
    busy = even(40)
    busy[9:, 1] *= 1.2

    change = found(busy, ParallelLayout(world_size=4, tp=1, pp=1, dp=4))

    assert change is not None
    assert (change.rank, change.since_step) == (1, 10)


def test_a_design_that_was_always_unequal_or_a_job_that_changed_as_a_whole_is_no_change() -> None:
    unequal = even(40) * [1.0, 1.0, 1.4, 1.0]
    slower = even(40)
    slower[20:] *= 1.4

    assert found(unequal) is None
    assert found(slower) is None


def test_too_few_steps_or_a_small_change_say_nothing() -> None:
    few, small = even(40), even(40)
    few[36:, 2] *= 1.5
    small[20:, 2] *= 1.09

    assert found(few) is None
    assert found(small) is None
    assert found(even(3)) is None


@given(seed=st.integers(0, 10_000), count=st.integers(1, 60))
def test_noise_is_no_change(seed: int, count: int) -> None:
    assert found(even(count, seed=seed)) is None


def summary(busy: np.ndarray) -> JobSummary:
    steps = step_table([1.0] * len(busy))
    table = timers(busy, steps)
    window = {"forward-backward": np.tile(busy.max(axis=1, keepdims=True) * 1.1, (1, 4))}
    table = replace(table, by_rank_s={**table.by_rank_s, **window})
    layout = description(world_size=4, tp=1, pp=4, dp=1, cp=1, micro_batch_size=1, global_batch_size=32)
    return summarise(job_data(steps, phases=table, description=layout), AnalysisSettings())


def test_layers_are_not_moved_for_what_changed_at_some_step() -> None:
    changed, designed = even(40), even(40) * [1.0, 1.0, 1.6, 1.0]
    changed[19:, 2] *= 1.6

    since, always = (
        next(one for one in summary(busy).findings if one.kind is Kind.PIPELINE_IMBALANCE)
        for busy in (changed, designed)
    )

    assert since.culprit_names == always.culprit_names == "stage 2"
    assert any(sentence.startswith("Since step 20 stage 2 computes 59") for sentence in since.evidence)
    assert "what changed for stage 2 at step 20" in since.advice
    assert "Move layers" not in since.advice
    assert always.advice.startswith("Move layers")
