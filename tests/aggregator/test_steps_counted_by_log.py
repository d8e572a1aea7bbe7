"""How the log counts steps decides where operations repeat within a step: layers alike, or micro-batches."""

from __future__ import annotations

import numpy as np
import pytest
from aggregator.test_exact_steps import FSDP, MB, Op, Timeline

from perfd.aggregator.jobs import JobState, RecordSource
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.model import StepDoubt, TrainingStep

LAYER = [Op("AllReduce", 32 * MB, 5_000), Op("AllReduce", 32 * MB, 1_700), Op("AllReduce", 31 * MB, 1_500)]
LAYERS = 12
FORWARD_US = 68_000


def job_of(timeline: Timeline, *, every: int = 5, late_s: float = 0.05, steps_per_line: int = 1) -> JobState:
    """A job whose log has a line every few steps, without times."""
    lines = [
        (number // steps_per_line, end_us / 1e6 + late_s)
        for number, end_us in enumerate(timeline.ends_us, start=1)
        if number % (every * steps_per_line) == 0
    ]
    return played(timeline, lines)


def played(timeline: Timeline, lines: list[tuple[int, float]], *, ahead_s: float = 0.0) -> JobState:
    """A job with these operations and its log's lines of a step and a time, which are taken from the list.

    Lines arrive so long before operations of their time.
    """
    job = JobState("job", Limits(), AggregatorCounters())
    for times in timeline.records():
        sent_s = times.end_unix_ns / 1e9
        source = RecordSource(agent_id="a", node="n", sent_unix_s=sent_s, now_s=sent_s)
        job.touch(source)
        while lines and lines[0][1] < sent_s + ahead_s:
            step, at_s = lines.pop(0)
            job.step(TrainingStep(job="job", step=step, time_unix_ns=int(at_s * 1e9)), source)
        job.steps_by(times, source)
    return job


def steps_of_layers(steps: int) -> Timeline:
    timeline = Timeline()
    for _ in range(steps):
        timeline.step([LAYER] * LAYERS, pause_us=FORWARD_US)
    return timeline


def test_layers_of_one_size_are_no_steps_where_the_log_counts_otherwise():
    timeline = steps_of_layers(120)
    job = job_of(timeline)
    table = job.step_table()
    true_s = (timeline.ends_us[-1] - timeline.ends_us[20]) / 1e6 / (len(timeline.ends_us) - 21)
    assert table.step_time_s[-10:] == pytest.approx(true_s, rel=0.02)
    assert table.step[-1] == pytest.approx(len(timeline.ends_us), abs=8)
    # Each row ends with the last reduction of a step, not within one.
    ends = set(timeline.ends_us)
    assert all(round(end_s * 1e6) in ends for end_s in table.time_unix_s.tolist())
    assert job.operation_pace is not None
    assert job.operation_pace.per_step == pytest.approx(3 * LAYERS)


def test_steps_before_the_log_counts_otherwise_are_known_back_to_the_first():
    timeline = steps_of_layers(120)
    table = job_of(timeline).step_table()
    true_s = np.diff(timeline.ends_us) / 1e6
    assert table.step.tolist() == list(range(int(table.step[0]), int(table.step[-1]) + 1))
    assert table.step[0] <= 4
    assert table.step_time_s == pytest.approx(true_s[table.step - 2], rel=0.02)


def test_steps_before_something_else_stay_unknown_where_the_log_counts_otherwise():
    timeline = steps_of_layers(13)
    timeline.step([[Op("AllReduce", 64 * MB, 5_000)]])
    timeline.ends_us.pop()
    for _ in range(120):
        timeline.step([LAYER] * LAYERS, pause_us=FORWARD_US)
    table = job_of(timeline).step_table()
    assert 13 < table.step[0] < 20
    assert table.step_time_s == pytest.approx(0.2025, rel=0.02)


def test_steps_that_the_log_counts_as_operations_do_stay():
    timeline = Timeline()
    for _ in range(120):
        timeline.step([LAYER], pause_us=150_000)
    job = job_of(timeline)
    assert job.operation_pace is not None
    assert job.operation_pace.per_step == pytest.approx(3)
    assert job.step_table().step[-1] == pytest.approx(120, abs=8)


def test_micro_batches_of_sharded_parameters_are_steps_of_the_log():
    timeline = Timeline()
    for _ in range(60):
        timeline.step([FSDP] * 4, pause_us=1_000)
    without = job_of(timeline, every=1000)
    job = job_of(timeline)
    assert without.operation_pace is not None
    assert job.operation_pace is not None
    assert job.operation_pace.certain
    assert job.operation_pace.per_step == pytest.approx(4 * 17)
    assert job.step_table().step[-1] == pytest.approx(60, abs=5)


@pytest.mark.parametrize(("steps_per_line", "per_step"), [(90, 3), (2.5, 3), (60, 60 * 3)])
def test_only_a_small_whole_number_says_how_many_are_one_step(steps_per_line, per_step):
    timeline = Timeline()
    for _ in range(900):
        timeline.step([LAYER], pause_us=20_000)
    job = JobState("job", Limits(), AggregatorCounters())
    sent = 0
    for times in timeline.records():
        sent_s = times.end_unix_ns / 1e9
        source = RecordSource(agent_id="a", node="n", sent_unix_s=sent_s, now_s=sent_s)
        job.touch(source)
        done = sum(end_us / 1e6 < sent_s for end_us in timeline.ends_us)
        while (sent + 1) * steps_per_line <= done:
            sent += 1
            at_us = timeline.ends_us[int(sent * steps_per_line) - 1]
            job.step(TrainingStep(job="job", step=sent, time_unix_ns=at_us * 1000), source)
        job.steps_by(times, source)
    assert job.operation_pace is not None
    assert job.operation_pace.per_step == pytest.approx(per_step)


@pytest.mark.parametrize(("scattered_s", "per_step"), [(0.045, 3 * LAYERS), (0.055, 3 * LAYERS), (0.09, 3)])
def test_lines_that_scatter_decide_only_if_their_ratio_is_sure(scattered_s: float, per_step: float) -> None:
    """Six lines decide once the operations before the last of them have come."""
    timeline = steps_of_layers(136)
    scatter = [1, -2, 1, 1, -2, 1]
    lines = [
        (step, timeline.ends_us[step - 1] / 1e6 + scattered_s * (2 + by))
        for step, by in zip(range(20, 128, 18), scatter, strict=True)
    ]
    job = played(timeline, lines)

    assert not lines
    assert job.operation_pace is not None
    assert job.operation_pace.per_step == pytest.approx(per_step)


@pytest.mark.parametrize("ahead_s", [-2.0, 0.0, 1.0])
def test_lines_decide_whether_they_arrive_before_operations_or_after(ahead_s: float) -> None:
    timeline = steps_of_layers(120)
    lines = [(step, timeline.ends_us[step - 1] / 1e6) for step in range(40, 100, 10)]
    job = played(timeline, lines, ahead_s=ahead_s)

    assert not lines
    assert job.operation_pace is not None
    assert job.operation_pace.per_step == pytest.approx(3 * LAYERS)


def test_a_few_lines_decide_nothing():
    job = job_of(steps_of_layers(120), every=25)
    assert job.operation_pace is not None
    assert job.operation_pace.per_step == pytest.approx(3)


def test_the_log_leaves_no_doubt_where_it_counts_the_same_steps():
    timeline = Timeline()
    for _ in range(120):
        # Micro-batches whose optimizer does not show would look the same.
        timeline.step([FSDP], pause_us=0)
    silent, logged = job_of(timeline, every=1000), job_of(timeline)
    assert silent.operation_pace is not None
    assert logged.operation_pace is not None
    assert (silent.operation_pace.certain, logged.operation_pace.certain) == (False, True)
    assert logged.operation_pace.per_step == pytest.approx(17)


def test_parameters_that_are_averaged_every_eight_steps_of_the_log_show_these():
    timeline = Timeline()
    averaged = [Op("AllReduce", (20 + at) * MB, 30 if at else 400_000, 150) for at in range(12)]
    for _ in range(100):
        timeline.step([averaged], pause_us=0)
    lines = [(8 * number, end_us / 1e6 + 0.05) for number, end_us in enumerate(timeline.ends_us, start=1)]
    silent, logged = played(timeline, []), played(timeline, lines)

    assert silent.operation_pace is not None
    assert silent.operation_pace.doubt is StepDoubt.ROUNDS
    assert logged.operation_pace is not None
    assert logged.operation_pace.certain
    assert logged.operation_pace.per_step == pytest.approx(12 / 8)
    table = logged.step_table()
    assert table.step[-1] == pytest.approx(800, abs=8)
    assert set(table.steps_covered.tolist()) == {8}
    assert table.step_time_s[-1] == pytest.approx(0.4035 / 8, rel=0.05)
    # Rows of before the log was understood are the same.
    assert table.step[0] == 16
