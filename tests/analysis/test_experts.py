"""Unequal load of experts: by the work of tensor cores, named by role, and not mistaken for a slow GPU."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.analysis.data.job_data import GpuKey
from perfd.analysis.steps import STEADY_STEPS, GpuActivity, LongerSteps
from perfd.analysis.stragglers import expert_imbalance
from perfd.model import GpuColumn, ParallelLayout

STEPS = 12
EXPERTS = ParallelLayout(world_size=4, tp=1, pp=1, dp=4, cp=1, ep=4)


def activity(
    tensor: list[float], sm: list[float], *, clock: list[float] | None = None, ranks: list[int] | None = None
) -> GpuActivity:
    """Steps in which each GPU's activities scatter by 2%; kernels run 90% of the time."""
    scatter = 1 + 0.02 * np.sin(np.arange(STEPS * len(tensor)).reshape(STEPS, len(tensor)))
    metrics = {
        GpuColumn.TENSOR_ACTIVE: tensor * scatter,
        GpuColumn.SM_ACTIVE: sm * scatter,
        GpuColumn.GRAPHICS_ACTIVE: np.full((STEPS, len(tensor)), 0.9),
        GpuColumn.SM_CLOCK: np.ones((STEPS, 1)) * (clock or [1.98e9] * len(tensor)),
    }
    return GpuActivity(
        gpus=[GpuKey(node="n", gpu=str(rank), rank=rank) for rank in ranks or range(len(tensor))],
        metrics=metrics,
        medians={},
        samples=np.arange(STEPS),
        source=STEADY_STEPS,
    )


def test_the_rank_whose_experts_get_more_tokens_is_named_with_what_it_costs() -> None:
    """The activities of recording live_ep4."""
    found = expert_imbalance(activity([0.213, 0.114, 0.108, 0.169], [0.522, 0.393, 0.389, 0.467]), EXPERTS)

    assert found is not None
    assert (found.rank, found.ranks, found.persistence_ratio) == (0, (0, 1, 2, 3), 1.0)
    assert found.work_ratio == pytest.approx(1.41, abs=0.02)
    # PyTorch's profile of two of its steps: 51.5% and a mean of 40.2%.
    assert found.compute_ratio == pytest.approx(0.455, abs=0.01)
    assert found.gain_ratio == pytest.approx(0.094, abs=0.01)


def test_a_slow_gpu_with_the_same_work_is_no_imbalance_of_experts() -> None:
    slow = activity([0.28, 0.14, 0.14, 0.14], [0.9, 0.5, 0.5, 0.5], clock=[0.99e9, 1.98e9, 1.98e9, 1.98e9])

    assert expert_imbalance(slow, EXPERTS) is None


@pytest.mark.parametrize(
    ("added", "named"),
    [([1.0, 0.0, 0.02, -0.02], False), ([1.0, -0.3, -0.3, -0.3], True), ([0.1, 0.0, 0.0, 0.0], True)],
    ids=["the others lost no work", "tokens moved", "steps are longer for another reason"],
)
def test_work_that_one_rank_got_and_no_other_lost_is_not_of_its_experts(
    added: list[float], named: bool
) -> None:
    """As in recording ep4 with products added on one rank: 1.03 there, -0.01 to 0.03 on the others."""
    busy = activity([0.5, 0.1, 0.1, 0.1], [0.7, 0.3, 0.3, 0.3])
    longer = LongerSteps(
        since_step=17,
        before_s=0.3,
        since_s=0.6,
        longer_for_s=6.0,
        lines=8,
        ranks=np.arange(4),
        computing_ratio=np.array(added),
        running_ratio=np.ones(4),
        active_before_ratio=np.full(4, 0.9),
    )

    found = expert_imbalance(busy, EXPERTS, longer)

    assert (found is not None and found.rank == 0) is named


def test_without_expert_parallelism_or_a_whole_group_nothing_is_said() -> None:
    unequal = activity([0.2, 0.1, 0.1, 0.1], [0.5, 0.3, 0.3, 0.3])
    three = activity([0.2, 0.1, 0.1], [0.5, 0.3, 0.3])

    assert expert_imbalance(unequal, ParallelLayout(world_size=4, dp=4)) is None
    assert expert_imbalance(three, EXPERTS) is None


def test_groups_with_tensor_parallelism_are_compared_among_themselves() -> None:
    """TP 2, EP 2: groups are (0, 2) and (1, 3), whose work differs by design between them."""
    layout = ParallelLayout(world_size=4, tp=2, pp=1, dp=2, cp=1, ep=2)
    by_design = activity([0.2, 0.1, 0.2, 0.1], [0.5, 0.3, 0.5, 0.3])
    unequal = activity([0.2, 0.1, 0.12, 0.1], [0.5, 0.3, 0.35, 0.3])

    assert expert_imbalance(by_design, layout) is None
    found = expert_imbalance(unequal, layout)
    assert found is not None
    assert (found.rank, found.ranks) == (0, (0, 2))


@given(
    tensor=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    sm=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    missing=st.integers(0, 4),
)
def test_whatever_gpus_do_the_cost_is_a_share_of_a_step(
    tensor: list[float], sm: list[float], missing: int
) -> None:
    seen = activity(tensor, sm)
    if missing < 4:
        seen.metrics[GpuColumn.TENSOR_ACTIVE][:, missing] = np.nan

    found = expert_imbalance(seen, EXPERTS)

    assert found is None or (missing == 4 and 0 < found.gain_ratio <= 1 and found.work_ratio >= 1.1)
