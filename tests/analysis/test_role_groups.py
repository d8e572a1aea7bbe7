"""Comparing all roles at once gives what comparing each rank with its peers, one by one, would give."""

from __future__ import annotations

import itertools
import statistics

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from perfd.analysis.data.job_data import Floats, GpuKey
from perfd.analysis.steps.activity_by_gpu import GpuActivity
from perfd.analysis.stragglers import compare_activity
from perfd.analysis.stragglers.peer_comparison import Pattern
from perfd.analysis.stragglers.role_groups import others, peer_groups, role_blocks
from perfd.model import GpuColumn, ParallelLayout
from perfd.thresholds import THRESHOLDS
from tests.support.examples import examples

ACTIVE = st.sampled_from([0.0, 0.2, 0.3, 0.5, 0.55, 0.6, 0.8, 0.9, float("nan")])
LAYOUTS = st.builds(
    lambda tp, pp, dp: ParallelLayout(world_size=tp * pp * dp, tp=tp, pp=pp, dp=dp),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 10),
)
STEPS = 12


def known_median(values: list[float]) -> float:
    known = [value for value in values if value == value]
    return statistics.median(known) if known else float("nan")


@given(arrays.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 8)), elements=ACTIVE))
def test_others_is_the_median_of_the_row_without_each_member(values: Floats) -> None:
    expected = [
        [
            known_median([value for place, value in enumerate(row) if place != member])
            for member in range(len(row))
        ]
        for row in values.tolist()
    ]
    np.testing.assert_allclose(others(values), expected, rtol=1e-12)


@given(LAYOUTS)
def test_ranks_of_a_group_have_one_stage_and_one_tensor_position(layout: ParallelLayout) -> None:
    world, tensor, stages = layout.world_size or 0, layout.tp or 1, layout.pp or 1
    role = {rank: (rank // (world // stages), rank % tensor) for rank in range(world)}
    expected = [[rank for rank in range(world) if role[rank] == one] for one in sorted(set(role.values()))]
    ranks = np.arange(world)
    groups = [group.tolist() for group in peer_groups(ranks, layout)]
    assert groups == [group for group in expected if len(group) > 1]
    in_blocks = [row for block in role_blocks(ranks, layout) for row in block.places.tolist()]
    assert sorted(in_blocks) == sorted(groups)


def plain(metrics: dict[GpuColumn, Floats], layout: ParallelLayout) -> set[tuple[int, Pattern]]:
    """Who is named, rank by rank, as docs/analysis.md says it; all samples are of one node."""
    found: set[tuple[int, Pattern]] = set()
    least = THRESHOLDS.straggler_slowdown_ratio
    for group in peer_groups(np.arange(layout.world_size or 0), layout):
        named: dict[Pattern, list[int]] = {Pattern.BUSY_LONGER: [], Pattern.IDLE: []}
        for rank in group.tolist():
            peers = [other for other in group.tolist() if other != rank or len(group) > 8]
            tensor, streaming, kernels = (
                [(row[rank], known_median([row[peer] for peer in peers])) for row in metrics[column].tolist()]
                for column in (GpuColumn.TENSOR_ACTIVE, GpuColumn.SM_ACTIVE, GpuColumn.GRAPHICS_ACTIVE)
            )
            busy = [own / typical if typical > 0 else float("nan") for own, typical in tensor]
            waited = known_median(
                [1 - typical / own if own > 0 else float("nan") for own, typical in streaming]
            )
            if stands_out(busy, least) and waited >= THRESHOLDS.straggler_wait_ratio:
                named[Pattern.BUSY_LONGER].append(rank)
            if stands_out([1 + typical - own for own, typical in kernels], least):
                named[Pattern.IDLE].append(rank)
        seen = {
            column: all(np.isfinite(metrics[column][:, rank]).any() for rank in group) for column in metrics
        }
        if not (seen[GpuColumn.TENSOR_ACTIVE] and seen[GpuColumn.SM_ACTIVE]):
            named[Pattern.BUSY_LONGER] = []
        if not seen[GpuColumn.GRAPHICS_ACTIVE]:
            named[Pattern.IDLE] = []
        for pattern, ranks in named.items():
            if len(ranks) <= max(1, (len(group) - 1) // 2):
                found |= {(rank, pattern) for rank in ranks}
    return found


def stands_out(ratios: list[float], least: float) -> bool:
    known = [ratio for ratio in ratios if ratio == ratio]
    if len(known) < 5:
        return False
    middle = statistics.median(known)
    scatter = max(statistics.median([abs(ratio - middle) for ratio in known]), 0.005)
    error = 3 * 1.2533 * 1.4826 * scatter / len(known) ** 0.5
    often = sum(ratio > 1 + least / 2 for ratio in known) / len(known)
    return often >= THRESHOLDS.straggler_persistence_ratio and middle - 1 >= max(least, error)


@settings(max_examples=examples(150))
@given(LAYOUTS, st.integers(0, 2**32 - 1), st.integers(0, 3))
def test_the_same_ranks_are_named_as_by_comparing_them_one_by_one(
    layout: ParallelLayout, seed: int, slow: int
) -> None:
    random, world = np.random.default_rng(seed), layout.world_size or 0
    columns = (GpuColumn.TENSOR_ACTIVE, GpuColumn.SM_ACTIVE, GpuColumn.GRAPHICS_ACTIVE)
    metrics: dict[GpuColumn, Floats] = {
        column: 0.5 + 0.02 * random.standard_normal((STEPS, world)) for column in columns
    }
    for rank, column in itertools.product(random.integers(0, world, slow).tolist(), columns):
        metrics[column][:, rank] *= random.choice([0.6, 0.85, 1.0, 1.12, 1.3])
    metrics[columns[seed % 3]][random.random((STEPS, world)) < 0.1] = np.nan
    if seed % 5 == 0:
        metrics[columns[seed % 3]][:, 0] = np.nan
    activity = GpuActivity(
        gpus=[GpuKey(node="n", gpu=str(rank), rank=rank) for rank in range(world)],
        metrics=metrics,
        medians={},
        samples=np.arange(STEPS),
        source="steady steps",
    )
    with np.errstate(all="ignore"):
        compared = compare_activity(activity, layout)
    assert {(one.rank, one.pattern) for one in compared.stragglers} == plain(metrics, layout)
    waits = [one.wait_ratio for one in compared.stragglers]
    assert waits == sorted(waits, reverse=True)
