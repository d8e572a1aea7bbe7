from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.clock import Schedule, VirtualClock, common_start_s, scheduled_unix_s


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


def test_what_is_due_can_be_skipped_and_what_is_not_stays() -> None:
    schedule = Schedule(interval_s=1.0, start_s=0.0)
    schedule.skip(2.5)
    assert schedule.next_s == 3.0
    schedule.skip(2.9)
    assert schedule.next_s == 3.0


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


@given(
    interval_s=st.sampled_from([0.05, 0.1, 1.0, 5.0, 60.0]), started_s=st.lists(st.floats(0, 1e4), min_size=2)
)
def test_agents_that_start_at_different_times_have_their_ticks_at_the_same_instants(
    interval_s: float, started_s: list[float]
) -> None:
    ticks_unix_s = []
    for since_s in started_s:
        clock = VirtualClock(start_unix_ns=1_800_000_000_123_456_789)
        clock.advance(since_s)
        start_s = common_start_s(interval_s, clock)
        assert clock.monotonic_s() - interval_s < start_s <= clock.monotonic_s()
        ticks_unix_s.append(clock.unix_ns() / 1e9 - clock.monotonic_s() + start_s)
    for tick_unix_s in ticks_unix_s:
        assert tick_unix_s / interval_s == pytest.approx(round(tick_unix_s / interval_s), abs=1e-4)


@pytest.mark.parametrize(("woken_s", "seen_s"), [(5.0, 5.0), (5.004, 5.0), (5.4, 5.0), (4.7, 4.7)])
def test_a_thread_that_wakes_up_late_sees_the_time_at_which_its_tick_was_due(woken_s, seen_s) -> None:
    clock = VirtualClock(start_unix_ns=1_800_000_000_000_000_000)
    clock.advance(woken_s)
    assert scheduled_unix_s(5.0, clock) - 1_800_000_000 == pytest.approx(seen_s, abs=1e-6)
