"""The matrix of ranks that wait for each other."""

from __future__ import annotations

import numpy as np
import pytest
from analysis.jobs import description
from analysis.test_nccl import summary, table

from perfd.analysis.collectives.peer_waits import PeerWaits
from perfd.analysis.diagnosis import from_json, to_json


def matrix(waits: PeerWaits) -> dict[tuple[int, int], float]:
    return {
        (rank, last): ratio
        for rank, row in zip(waits.waiting, waits.wait_ratios, strict=True)
        for last, ratio in zip(waits.last, row, strict=True)
    }


def test_each_rank_waits_for_the_one_that_came_last() -> None:
    waits = summary([table([0, 1, 2, 3], [0, 0.005, 0.02, 0])]).nccl.peer_waits

    assert list(waits.waiting) == list(waits.last) == [0, 1, 2, 3]
    found = matrix(waits)
    # Ten operations a second, of which each waits 20 and 15 ms.
    assert found[0, 2] == found[3, 2] == pytest.approx(0.2)
    assert found[1, 2] == pytest.approx(0.15)
    assert sum(found.values()) == pytest.approx(0.55)


def test_a_row_adds_up_to_what_the_rank_waits() -> None:
    tables = [
        table([0, 1], [0, 0.02], communicator="a"),
        table([2, 3], [0.01, 0], communicator="b"),
        table([0, 2], [0.004, 0], communicator="c"),
        table([1, 3], [0, 0.003], communicator="d"),
    ]
    result = summary(tables)

    waits = result.nccl.peer_waits
    waiting = {one.rank: one.wait_ratio for one in result.nccl.ranks}
    for rank, row, of_all in zip(waits.waiting, waits.wait_ratios, waits.all_ratios, strict=True):
        assert sum(row) == pytest.approx(of_all) == pytest.approx(waiting[rank])
    assert matrix(waits)[0, 1] == pytest.approx(0.2)
    assert matrix(waits)[2, 0] == pytest.approx(0.04)
    assert matrix(waits)[0, 2] == matrix(waits)[0, 3] == 0


def test_the_order_of_a_communicators_ranks_does_not_matter() -> None:
    waits = summary([table([3, 0, 2, 1], [0.02, 0, 0, 0])]).nccl.peer_waits

    assert {last for (_, last), ratio in matrix(waits).items() if ratio > 0} == {3}


def test_of_many_ranks_those_are_shown_that_matter() -> None:
    ranks = list(range(256))
    arrivals = np.zeros(256)
    arrivals[200] = 0.02
    job = description(world_size=256, dp=256, micro_batch_size=1, global_batch_size=256)
    waits = summary([table(ranks, arrivals)], job=job).nccl.peer_waits

    assert list(waits.last) == [200]
    assert len(waits.waiting) == 12
    assert 200 not in waits.waiting
    assert all(row == [pytest.approx(0.2)] for row in waits.wait_ratios)


def test_without_waiting_there_is_no_matrix() -> None:
    assert summary([table([0, 1, 2, 3], [0, 0, 0, 0])]).nccl.peer_waits == PeerWaits()
    assert summary([], busy={0: 0.1}).nccl.peer_waits == PeerWaits()


def test_a_summary_keeps_it() -> None:
    result = summary([table([0, 1, 2, 3], [0, 0, 0.02, 0])])

    (again,) = from_json(to_json([result]))
    assert matrix(again.nccl.peer_waits) == matrix(result.nccl.peer_waits)
