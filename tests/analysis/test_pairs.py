"""Receives whose end NCCL does not tell, in a pipeline of two stages that is played here."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.analysis.pairs import receiver_durations_s
from perfd.analysis.tables import Floats, Ints

SEND_NS = 70_000
MILLISECOND_NS = 1_000_000


def gradients(
    steps: int, *, micro_batches: int = 4, first_ns: int, last_ns: int, apart_ns: int, drift: float = 0.0
) -> tuple[Floats, Ints, Floats]:
    """What NCCL tells of the gradients that the last stage sends to the first one, and what really was.

    A 1F1B schedule: forward takes a third of a stage's time of a micro-batch, `first_ns` or `last_ns`. All
    gradients but the last one come in a kernel that sends an activation as well, and that is noted to end
    when this has left.
    """
    told, starts, truth = [], [], []
    now = 0
    for _ in range(steps):
        first, last = now + 2 * (first_ns // 3), now + first_ns // 3
        for number in range(micro_batches):
            last += last_ns
            waits = max(0, last - first)
            alone = number == micro_batches - 1
            told.append((SEND_NS, waits + SEND_NS if alone else SEND_NS))
            starts.append((last, first))
            truth.append(waits + SEND_NS)
            first += (
                waits + SEND_NS + 2 * (first_ns // 3) + (0 if number >= micro_batches - 2 else first_ns // 3)
            )
        now = max(first, last) + 5 * MILLISECOND_NS
    starts_ns = np.array(starts, dtype=np.int64) + 10**9
    starts_ns[:, 1] += apart_ns + (drift * starts_ns[:, 1]).astype(np.int64)
    return np.array(told) / 1e9, starts_ns, np.array(truth) / 1e9


@given(st.integers(-(10**8), 10**12), st.floats(-2e-5, 2e-5))
def test_a_receive_lasts_until_its_sender_sent_whatever_the_clocks_say(apart_ns: int, drift: float) -> None:
    told, starts, truth = gradients(
        30, first_ns=15 * MILLISECOND_NS, last_ns=19 * MILLISECOND_NS, apart_ns=apart_ns, drift=drift
    )

    assert np.nansum(told[:, 1]) < 0.6 * truth.sum()
    assert receiver_durations_s(told, starts) == pytest.approx(truth, abs=2e-5)


def test_a_receiver_that_never_waits_is_left_alone() -> None:
    told, starts, _ = gradients(
        30, first_ns=30 * MILLISECOND_NS, last_ns=3 * MILLISECOND_NS, apart_ns=MILLISECOND_NS
    )

    assert receiver_durations_s(told, starts) == pytest.approx(told[:, 1])


def test_without_starts_or_with_too_few_receives_of_their_own_nothing_changes() -> None:
    told, starts, _ = gradients(
        30, first_ns=15 * MILLISECOND_NS, last_ns=19 * MILLISECOND_NS, apart_ns=MILLISECOND_NS
    )

    assert receiver_durations_s(told, np.full_like(starts, -1)) == pytest.approx(told[:, 1])
    assert receiver_durations_s(told[:8], starts[:8]) == pytest.approx(told[:8, 1])


def test_one_mark_that_is_wrong_moves_nothing() -> None:
    told, starts, truth = gradients(
        30, first_ns=15 * MILLISECOND_NS, last_ns=19 * MILLISECOND_NS, apart_ns=MILLISECOND_NS
    )
    told[59, 1] += 0.004

    found = np.delete(receiver_durations_s(told, starts), 59)
    assert found == pytest.approx(np.delete(truth, 59), abs=2e-5)


def test_operations_that_are_not_known_on_both_sides_stay_unknown() -> None:
    told, starts, truth = gradients(
        30, first_ns=15 * MILLISECOND_NS, last_ns=19 * MILLISECOND_NS, apart_ns=MILLISECOND_NS
    )
    told[10, 0] = told[11, 1] = np.nan

    found = receiver_durations_s(told, starts)

    assert found[10] == told[10, 1]
    assert np.isnan(found[11])
    assert np.delete(found, [10, 11]) == pytest.approx(np.delete(truth, [10, 11]), abs=2e-5)


@given(st.data())
def test_whatever_is_told_nothing_gets_shorter(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    number = st.one_of(st.just(float("nan")), st.floats(0, 100))
    told = np.array(data.draw(st.lists(st.tuples(number, number), min_size=count, max_size=count)))
    start = st.integers(-1, 2**62)
    starts = np.array(data.draw(st.lists(st.tuples(start, start), min_size=count, max_size=count)))

    found = receiver_durations_s(told, starts)

    assert (np.isnan(found) == np.isnan(told[:, 1])).all()
    assert (found >= told[:, 1])[np.isfinite(found)].all()
