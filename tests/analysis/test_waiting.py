"""Transfer and waiting are told apart by durations alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from perfd.analysis.collectives.communicator_totals import bus_bandwidth_bytes_per_s
from perfd.analysis.operations.communicator_waits import blame, of_late_roots, ranks_behind, split


def test_the_last_to_arrive_waits_for_nobody_and_the_others_for_it() -> None:
    durations = np.array([[1.0, 3.0, 2.0], [5.0, 4.0, 4.5]])

    parts = split(durations)

    assert parts.transfer_s.tolist() == [1.0, 4.0]
    assert parts.last_arriver.tolist() == [0, 1]
    assert parts.wait_s.tolist() == [[0.0, 2.0, 1.0], [1.0, 0.0, 0.5]]


def test_a_missing_rank_may_have_been_the_last_so_nothing_is_said() -> None:
    parts = split(np.array([[1.0, np.nan, 2.0]]))

    assert parts.last_arriver.tolist() == [-1]
    assert np.isnan(parts.transfer_s).all()
    assert np.isnan(parts.wait_s).all()


def test_a_communicator_of_one_waits_for_nobody_and_is_not_matched() -> None:
    assert blame(np.array([[1.0], [2.0]])).operations == 0


def test_nobody_is_behind_where_no_operations_are_reported() -> None:
    assert ranks_behind([], np.arange(4)) == ()


@pytest.mark.parametrize("ranks", [2, 4])
def test_blame_falls_on_the_rank_that_the_others_waited_for(ranks: int) -> None:
    durations = np.tile([3.0, 1.0, 3.0, 3.0][:ranks], (10, 1))

    result = blame(durations)

    assert result.operations == 10
    assert result.transfer_s == pytest.approx(10.0)
    assert result.caused_s.tolist() == pytest.approx([0, 20, 0, 0][:ranks])
    assert result.waited_s.tolist() == pytest.approx([20, 0, 20, 20][:ranks])
    assert result.last_ratio.tolist() == pytest.approx([0, 1, 0, 0][:ranks])


@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(0, 6), st.integers(1, 5)),
        elements=st.floats(0, 1e3) | st.just(float("nan")),
    ),
    st.randoms(),
)
def test_durations_are_transfer_plus_waiting_and_ranks_have_no_order(durations: np.ndarray, random) -> None:
    parts = split(durations)
    matched = parts.last_arriver >= 0

    assert np.allclose(parts.transfer_s[matched, None] + parts.wait_s[matched], durations[matched])
    order = list(range(durations.shape[1]))
    random.shuffle(order)
    assert np.allclose(split(durations[:, order]).transfer_s, parts.transfer_s, equal_nan=True)
    assert np.allclose(blame(durations[:, order]).waited_s, blame(durations).waited_s[order])


@pytest.mark.parametrize(
    ("durations", "of_late_root"),
    [
        ([0.001, 0.136], True),
        ([0.136, 0.001], True),
        ([0.001, 0.136, 0.130, 0.140], True),
        # The second rank of the ring came late: the root had ended, and who is behind it waited.
        ([0.001, 0.002, 0.136, 0.136], False),
        ([0.001, 0.0694, 0.137, 0.137], True),
        ([0.001, 0.0679, 0.137, 0.137], False),
        ([0.001, np.nan, 0.137, 0.137], False),
    ],
)
def test_a_broadcast_names_its_last_rank_only_where_all_others_wait_alike(
    durations: list[float], of_late_root: bool
) -> None:
    kept = split(of_late_roots(np.array([durations])))
    assert kept.last_arriver.tolist() == ([int(np.argmin(durations))] if of_late_root else [-1])


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    size, transfer = np.array([1e9]), np.array([0.01])

    assert bus_bandwidth_bytes_per_s("AllReduce", size, transfer, 8) == pytest.approx([1.75e11])
    assert bus_bandwidth_bytes_per_s("AllGather", size, transfer, 8) == pytest.approx([0.875e11])
    assert bus_bandwidth_bytes_per_s("Send", size, transfer, 8) == pytest.approx([1e11])
    assert np.isnan(bus_bandwidth_bytes_per_s("AllReduce", size, np.array([0.0]), 8)).all()
