"""A slow rank of several expert-parallel groups, whose dense gradients are reduced over all replicas."""

from __future__ import annotations

import numpy as np
import pytest
from analysis.test_lateness import STEP_S, gradients, judged, lags

from perfd.analysis.findings import Kind
from perfd.analysis.operations.peers_of_expert_groups import balanced
from tests.support.nccl_records import CollectiveTable

STEPS = 60
LAYOUT = {"ep": 2, "dp": 4}
"""Ranks 0 and 1 exchange tokens, and 2 and 3; 0 and 2 have the same experts, and 1 and 3."""


def dense(late: dict[int, float]) -> CollectiveTable:
    return gradients(lags(STEPS, 4, late), buckets=1)


def exchanges(ranks: tuple[int, int], late: dict[int, float]) -> CollectiveTable:
    """All-to-all of one expert group, in which the other one waits for the one that is late."""
    return gradients(
        lags(STEPS, 2, late), buckets=1, operation="AlltoAll", communicator=f"ep{ranks}", ranks=ranks
    )


def jobs_of(slow: int, share: float) -> list[CollectiveTable]:
    """Both ranks of its group are late for the reduction; within the group one waits for the other."""
    group = (0, 1) if slow < 2 else (2, 3)
    return [dense(dict.fromkeys(group, share)), exchanges(group, {slow % 2: share})]


@pytest.mark.parametrize("slow", range(4))
def test_the_slow_rank_is_named_and_not_the_one_that_exchanges_tokens_with_it(slow: int) -> None:
    found = judged(*jobs_of(slow, 0.3), **LAYOUT).bottleneck

    assert found.kind is Kind.STRAGGLER
    assert [culprit.id for culprit in found.culprits] == [slow]
    assert found.gain_ratio == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("second", [0.0, 0.1])
def test_of_four_groups_it_costs_what_the_next_one_would_be_earlier(second: float) -> None:
    late = {4: 0.3, 5: 0.3, 0: second, 1: second}
    tables = [gradients(lags(STEPS, 8, late), buckets=1), exchanges((4, 5), {1: 0.3})]
    found = judged(*tables, ep=2, dp=8).bottleneck

    assert [culprit.id for culprit in found.culprits] == [5]
    assert found.gain_ratio == pytest.approx(0.3 - second, abs=0.02)


def test_a_rank_whose_experts_get_more_tokens_is_late_beside_its_peer_and_not_blamed() -> None:
    found = judged(dense({1: 0.3, 3: 0.3}), **LAYOUT).bottleneck

    assert found.kind is not Kind.STRAGGLER


def test_a_late_rank_behind_those_with_more_tokens_costs_only_what_it_is_later_than_they() -> None:
    tables = [dense({0: 0.3, 2: 0.3, 3: 0.2}), exchanges((2, 3), {1: 0.2})]

    assert judged(*tables, **LAYOUT).bottleneck.kind is not Kind.STRAGGLER


def test_groups_that_are_last_in_turn_blame_no_rank() -> None:
    by_step = np.zeros((STEPS, 4))
    by_step[::2, :2], by_step[1::2, 2:] = 0.3 * STEP_S, 0.3 * STEP_S

    assert judged(gradients(by_step, buckets=1), **LAYOUT).bottleneck.kind is not Kind.STRAGGLER


def test_balanced_are_communicators_with_each_role_equally_often() -> None:
    roles = np.array([[0, 1, 0, 1], [0, 0, 0, 1], [1, 1, 2, 2], [0, 1, 2, 3], [0, 0, 0, 0]])

    assert balanced(roles).tolist() == [True, False, True, False, False]
    assert not balanced(roles[3:]).any()
