from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.agent.collection.collector_runner import Schedule


def test_the_first_tick_is_due_at_the_start() -> None:
    schedule = Schedule(interval_s=1.0, start_s=10.0)
    assert schedule.due(10.0)
    assert schedule.take(10.0) == 0
    assert not schedule.due(10.5)


def test_nothing_is_due_before_the_start() -> None:
    schedule = Schedule(interval_s=1.0, start_s=10.0)
    assert not schedule.due(9.9)
    assert not schedule.due(2.0)


def test_a_late_run_does_not_shift_later_ticks() -> None:
    schedule = Schedule(interval_s=1.0, start_s=0.0)
    schedule.take(0.0)
    schedule.take(1.4)
    assert schedule.next_s == 2.0


def test_ticks_that_passed_meanwhile_are_missed_and_counted() -> None:
    schedule = Schedule(interval_s=0.1, start_s=0.0)
    schedule.take(0.0)
    assert schedule.take(0.55) == 4
    assert schedule.next_s == pytest.approx(0.6)


@given(interval_s=st.floats(0.1, 60), start_s=st.floats(0, 1e7), ticks=st.integers(1, 200))
def test_waiting_until_the_next_tick_always_makes_it_due_and_misses_none(
    interval_s: float, start_s: float, ticks: int
) -> None:
    schedule = Schedule(interval_s=interval_s, start_s=start_s)
    for _ in range(ticks):
        now_s = schedule.next_s
        assert schedule.due(now_s)
        assert schedule.take(now_s) == 0
        assert not schedule.due(now_s)
