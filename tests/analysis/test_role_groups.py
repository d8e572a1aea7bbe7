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
NEWEST = 5
"""Steps in which a difference must last: a quarter of them, or the fewest that are trusted."""


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
    """Who is named, rank by rank, as docs/analysis-stragglers.md says it; all samples are of one node."""
    found: set[tuple[int, Pattern]] = set()
    groups = [group.tolist() for group in peer_groups(np.arange(layout.world_size or 0), layout)]
    busy: dict[int, list[float]] = {}
    idle: dict[int, list[float]] = {}
    waited: dict[int, float] = {}
    for group in groups:
        for rank in group:
            peers = [other for other in group if other != rank or len(group) > 8]
            tensor, streaming, kernels = (
                [(row[rank], known_median([row[peer] for peer in peers])) for row in metrics[column].tolist()]
                for column in (GpuColumn.TENSOR_ACTIVE, GpuColumn.SM_ACTIVE, GpuColumn.GRAPHICS_ACTIVE)
            )
            busy[rank] = [own / typical if typical > 0 else float("nan") for own, typical in tensor]
            idle[rank] = [1 + typical - own for own, typical in kernels]
            waited[rank] = known_median(
                [1 - typical / own if own > 0 else float("nan") for own, typical in streaming]
            )
    is_busy = {rank for rank in standing_out(busy, groups) if waited[rank] >= THRESHOLDS.straggler_wait_ratio}
    is_idle = standing_out(idle, groups, fewest=10)
    for group in groups:
        seen = {
            column: all(np.isfinite(metrics[column][:, rank]).any() for rank in group) for column in metrics
        }
        named = {
            Pattern.BUSY_LONGER: is_busy
            if seen[GpuColumn.TENSOR_ACTIVE] and seen[GpuColumn.SM_ACTIVE]
            else {},
            Pattern.IDLE: is_idle if seen[GpuColumn.GRAPHICS_ACTIVE] else {},
        }
        for pattern, ranks in named.items():
            of_group = [rank for rank in group if rank in ranks]
            if len(of_group) <= max(1, (len(group) - 1) // 2):
                found |= {(rank, pattern) for rank in of_group}
    return found


def standing_out(ratios: dict[int, list[float]], groups: list[list[int]], *, fewest: int = 5) -> set[int]:
    """Ranks that differ by enough, in enough steps, beyond the scatter of steps and, of four, of ranks."""
    if not ratios:
        return set()
    least = THRESHOLDS.straggler_slowdown_ratio
    known = {rank: [ratio for ratio in own if ratio == ratio] for rank, own in ratios.items()}
    middle = {rank: known_median(own) for rank, own in known.items()}
    mad = {
        rank: max(known_median([abs(ratio - middle[rank]) for ratio in own]), 0.005) if own else float("nan")
        for rank, own in known.items()
    }
    usual_mad = known_median(list(mad.values()))
    spread = 0.0 if len(groups[0]) < 4 else 1.4826 * known_median([abs(one - 1) for one in middle.values()])
    sigmas = statistics.NormalDist().inv_cdf(1 - 0.0027 / max(2, len(ratios)))
    found = set()
    for rank, own in known.items():
        if len(own) < fewest:
            continue
        error = 1.2533 * 1.4826 * max(mad[rank], usual_mad) / len(own) ** 0.5
        persistence = sum(ratio > 1 + least / 2 for ratio in own) / len(own)
        enough = middle[rank] - 1 >= max(least, sigmas * (error**2 + spread**2) ** 0.5)
        lately = known_median(ratios[rank][-NEWEST:]) - 1
        lasts = not lately < 0.5 * (middle[rank] - 1)
        if enough and lasts and persistence >= THRESHOLDS.straggler_persistence_ratio:
            found.add(rank)
    return found


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
