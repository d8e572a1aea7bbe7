"""Batches are rare while nothing changes on a node, and soon when something does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfd.agent.collection import BatchPace, in_other_intervals
from perfd.model import (
    CollectorHealth,
    Event,
    EventKind,
    JobDescription,
    RankPlacement,
    Record,
    SampleTable,
    Scope,
    TrainingStep,
)

# As documented, not as the module has them: a change of these is one for its users.
QUIET_AFTER_S, CHANGED_STEP_RATIO, OVERDUE_STEPS = 60.0, 0.1, 2.0
HEALTH = CollectorHealth(collector="nvml", time_unix_ns=1, duration_s=0.1, success=True)
PLACE = RankPlacement(job="llm", rank=0, gpu=0, world_size=1)
DESCRIPTION = JobDescription(job="llm", framework="megatron-lm")
SAMPLES = SampleTable(scope=Scope.NODE, times_unix_ns=[1], entities=[""], columns={"host_x_bytes": [1.0]})


def step(seconds: float | None = 1.0, job: str = "llm") -> TrainingStep:
    return TrainingStep(job=job, step=1, step_time_s=seconds)


def quiet(now_s: float = 1000.0) -> BatchPace:
    """One that has known its node for long."""
    pace = BatchPace(interval_s=1.0, quiet_interval_s=5.0)
    usual: list[Record] = [HEALTH, PLACE, DESCRIPTION, *[step()] * 5]
    pace.take(usual, now_s - QUIET_AFTER_S)
    pace.take([step()], now_s)
    return pace


def interval_s(pace: BatchPace, now_s: float = 1000.0, *, capturing: bool = False) -> float:
    return pace.interval_s(now_s, capturing=capturing)


def test_without_a_quiet_interval_it_never_changes() -> None:
    pace = BatchPace(interval_s=1.0, quiet_interval_s=None)
    pace.take([step()] * 9, 0.0)
    assert {interval_s(pace, now_s) for now_s in (0.0, 1e3, 1e6)} == {1.0}
    assert interval_s(pace, capturing=True) == 1.0


def asked(now_s: float = 1000.0, *, own_s: float | None = None) -> BatchPace:
    """One that has known its node for long, and is asked for batches every 2 s."""
    pace = BatchPace(interval_s=1.0, quiet_interval_s=own_s)
    pace.take([HEALTH, PLACE, *[step()] * 5], now_s - QUIET_AFTER_S)
    pace.take([step()], now_s)
    pace.ask(2.0)
    return pace


def test_it_sends_as_seldom_as_the_aggregator_asks_while_nothing_changes() -> None:
    pace = asked()
    assert interval_s(pace) == 2.0
    pace.take([step(1.2)], 1001.0)
    assert interval_s(pace, 1001.0) == 1.0
    pace.take([step()], 1001.0 + QUIET_AFTER_S)
    assert interval_s(pace, 1001.0 + QUIET_AFTER_S) == 2.0
    pace.ask(0.0)
    assert interval_s(pace, 1001.0 + QUIET_AFTER_S) == 1.0


@pytest.mark.parametrize(
    ("quiet_s", "expected_s"), [(0.2, 1.0), (4.0, 4.0), (1e9, 5.0), (float("nan"), 1.0), (-3.0, 1.0)]
)
def test_what_is_asked_is_bounded(quiet_s: float, expected_s: float) -> None:
    pace = asked()
    pace.ask(quiet_s)
    assert interval_s(pace) == expected_s


def test_during_a_capture_what_is_asked_does_not_count_and_an_interval_of_its_own_comes_first() -> None:
    assert interval_s(asked(), capturing=True) == 1.0
    assert interval_s(asked(own_s=5.0)) == 5.0
    assert interval_s(asked(own_s=1.0)) == 1.0


def test_quiet_agents_send_at_the_same_instants() -> None:
    # Ticks a quarter of a second late, of agents that started at different times.
    for first in (100.25, 101.25, 102.4):
        sent, last = [], first
        for tick in range(1, 9):
            now = first + tick
            if in_other_intervals(last, now, 2.0):
                sent.append(int(now) % 2)
                last = now
        assert sent == [0] * 4


def test_a_node_is_quiet_a_minute_after_the_last_change() -> None:
    pace = BatchPace(interval_s=1.0, quiet_interval_s=5.0)
    assert interval_s(pace, 100.0) == 1.0
    assert interval_s(pace, 100.0 + QUIET_AFTER_S - 0.1) == 1.0
    assert interval_s(pace, 100.0 + QUIET_AFTER_S) == 5.0
    assert interval_s(quiet()) == 5.0


@pytest.mark.parametrize(
    "usual",
    [
        SAMPLES,
        HEALTH,
        PLACE,
        DESCRIPTION,
        step(1.0 + CHANGED_STEP_RATIO - 0.01),
        step(1.0 - CHANGED_STEP_RATIO + 0.01),
        step(None),
    ],
)
def test_what_is_as_before_is_no_change(usual: Record) -> None:
    pace = quiet()
    pace.take([usual], 1000.0)
    assert interval_s(pace) == 5.0


@pytest.mark.parametrize(
    "change",
    [
        Event(kind=EventKind.HARDWARE_ERROR, time_unix_ns=1, message="XID 79"),
        replace(HEALTH, success=False),
        replace(PLACE, gpu=1),
        replace(PLACE, rank=1),
        replace(DESCRIPTION, framework="nemo"),
        step(1.0 + CHANGED_STEP_RATIO + 0.01),
        step(1.0 - CHANGED_STEP_RATIO - 0.01),
    ],
)
def test_a_change_ends_the_quiet_for_a_minute(change: Record) -> None:
    pace = quiet()
    pace.take([SAMPLES, change, SAMPLES], 1000.0)
    assert interval_s(pace) == 1.0
    pace.take([step()], 1000.0 + QUIET_AFTER_S)
    assert interval_s(pace, 1000.0 + QUIET_AFTER_S) == 5.0


def test_a_change_that_the_node_does_not_see_ends_the_quiet_too() -> None:
    pace = quiet()
    pace.change(1000.0)
    pace.take([step()], 1000.0 + QUIET_AFTER_S - 0.1)
    assert interval_s(pace, 1000.0 + QUIET_AFTER_S - 0.1) == 1.0
    assert interval_s(pace, 1000.0 + QUIET_AFTER_S) == 5.0


def test_a_step_that_does_not_end_is_a_change_and_an_ended_job_is_none() -> None:
    assert interval_s(quiet(), 1000.0 + OVERDUE_STEPS) == 5.0
    pace = quiet()
    assert interval_s(pace, 1000.1 + OVERDUE_STEPS) == 1.0
    assert interval_s(pace, 1000.0 + QUIET_AFTER_S) == 1.0
    assert interval_s(pace, 1000.2 + OVERDUE_STEPS + QUIET_AFTER_S) == 5.0


def test_each_job_has_its_own_usual_step() -> None:
    pace = quiet()
    pace.take([step(9.0, "other")] * 9, 1000.0)
    assert interval_s(pace) == 5.0


def test_during_a_capture_batches_are_sent_at_once() -> None:
    assert interval_s(quiet(), capturing=True) == 0.1
