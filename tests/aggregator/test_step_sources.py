"""Steps of one job from several sources: its own process, its log, its operations."""

from dataclasses import replace

import numpy as np
import pytest
from aggregator.support import fleet, source, step

from perfd.model import HOOK_MARK, CollectiveTimes, Event, EventKind, StepSource, TimingSource, TrainingStep

HOOK = {"extras": {HOOK_MARK: 1.0}}


def table(made):
    return made.jobs["llm"].steps.table()


def test_a_line_of_the_log_adds_its_loss_to_the_step_that_the_process_reported():
    made = fleet()
    made.apply([step(n, step_time_s=0.5, **HOOK) for n in range(4, 30)], source())

    stored = made.apply([step(10, step_time_s=9.0, loss=2.5)], source())

    assert [kept.attempt for kept in stored] == [1]
    rows = table(made)
    assert rows.step.tolist() == list(range(4, 30))
    assert rows.loss[6] == 2.5
    assert set(rows.step_time_s) == {0.5}


def test_steps_of_the_log_before_those_of_the_process_are_forgotten_and_none_comes_after():
    made = fleet()
    made.apply([step(n) for n in range(1, 9)], source())
    made.apply([step(n, step_time_s=0.5, **HOOK) for n in range(4, 7)], source())
    made.apply([step(n) for n in range(9, 12)], source())

    assert table(made).step.tolist() == [4, 5, 6]


def test_after_a_restart_the_log_counts_until_the_process_reports():
    made = fleet()
    made.apply([step(n, **HOOK) for n in range(4, 7)], source())
    restarted = Event(kind=EventKind.RESTARTED, time_unix_ns=1, message="", job="llm")
    made.apply([restarted, step(7)], source())

    assert table(made).step.tolist()[-1] == 7


def test_a_line_without_a_time_does_not_replace_steps_by_operations():
    made = fleet()
    made.apply([step(1)], source())
    job = made.jobs["llm"]
    job._sources.by_operations = True

    made.apply([step(5, step_time_s=None, loss=2.5)], source())

    assert table(made).step.tolist() == [1]


def untimed(number: int) -> TrainingStep:
    return step(number, step_time_s=None, loss=2.5, time_s=number * 0.4)


OPERATIONS = CollectiveTimes(
    job="llm",
    rank=0,
    communicator="world",
    operation="AllReduce",
    timing=TimingSource.GPU,
    start_unix_ns=0,
    end_unix_ns=10**9,
    count=1,
    total_s=0.1,
    min_s=0.1,
    max_s=0.1,
)


def test_lines_without_a_time_take_it_from_when_they_came():
    made = fleet()
    made.apply([untimed(n) for n in range(1, 9)], source())
    job = made.jobs["llm"]

    assert job.step_source is StepSource.ARRIVAL
    assert job.step_table().step_time_s[1:] == pytest.approx(0.4)


def test_a_log_that_begins_to_say_times_is_believed():
    made = fleet()
    made.apply([untimed(n) for n in range(1, 9)], source())
    made.apply([step(9, step_time_s=0.7)], source())
    job = made.jobs["llm"]

    assert job.step_source is StepSource.LOG
    times_s = job.step_table().step_time_s
    assert times_s[-1] == 0.7
    assert np.isnan(times_s[:-1]).all()


def test_operations_that_show_no_steps_for_fifty_lines_leave_them_to_arrivals():
    made = fleet()
    made.apply([untimed(1), OPERATIONS, *(untimed(n) for n in range(2, 51))], source())
    job = made.jobs["llm"]
    assert job.step_source is StepSource.LOG

    made.apply([untimed(51)], source())

    assert job.step_source is StepSource.ARRIVAL
    assert job.step_table().step_time_s[1:] == pytest.approx(0.4)


@pytest.mark.parametrize(("covered", "lines"), [(2, 25), (5, 10), (100, 10)])
def test_lines_over_several_steps_wait_less_but_for_ten_lines(covered: int, lines: int):
    made = fleet()
    of_several = [replace(untimed(n * covered), steps_covered=covered) for n in range(1, lines + 2)]
    made.apply([of_several[0], OPERATIONS, *of_several[1:-1]], source())
    job = made.jobs["llm"]
    assert job.step_source is StepSource.LOG

    made.apply(of_several[-1:], source())

    assert job.step_source is StepSource.ARRIVAL


def test_a_job_that_communicates_waits_for_steps_by_its_operations():
    made = fleet()
    made.apply([untimed(n) for n in range(1, 9)], source())
    made.apply([OPERATIONS], source())
    job = made.jobs["llm"]

    assert job.step_source is StepSource.LOG
    assert np.isnan(job.step_table().step_time_s).all()
