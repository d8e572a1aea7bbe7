"""What steps by NCCL operations show once a job has ended: nothing waits for more operations then."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import pytest

from perfd.aggregator.jobs import JobState, RecordSource
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.operations import OperationSteps
from perfd.model import CollectiveTimes, Event, EventKind, StepSource, TrainingStep
from tests.aggregator.test_exact_steps import DDP, FSDP, MB, Op, Timeline, assert_exact, trained
from tests.aggregator.test_operation_steps import Rank
from tests.aggregator.test_operation_steps import record as untimed


def rows_of(records: Sequence[CollectiveTimes]) -> tuple[list[TrainingStep], list[TrainingStep]]:
    """While the job runs, and then at its end."""
    steps, rows = OperationSteps(), list[TrainingStep]()
    for times in records:
        found = steps.put(times)
        rows = [*([] if found.anew else rows), *found.rows]
    found = steps.end("job")
    assert not found.anew
    assert not steps.end("job").rows
    return rows, [*found.rows]


def test_sixteen_steps_that_may_be_micro_batches_show_at_the_end() -> None:
    timeline = trained(lambda line, _: line.step([FSDP]), 16)
    running, last = rows_of([*timeline.records()])

    assert not running
    assert_exact(last, timeline.ends_us)
    assert last[-1].step == 16


def test_the_last_short_steps_fill_a_row() -> None:
    quick = [Op("AllReduce", size * MB, 1_000) for size in (25, 26, 125)]
    timeline = trained(lambda line, _: line.step([quick], pause_us=3_000), 2_009)
    running, last = rows_of([*timeline.records()])

    assert running[-1].step < 2_009
    assert_exact([*running, *last], timeline.ends_us)
    assert last[-1].step == 2_009


def test_a_job_that_does_not_repeat_shows_nothing_at_the_end() -> None:
    timeline = trained(lambda line, number: line.step([[Op("AllReduce", (7 + number**2) * MB, 9_000)]]), 300)

    assert rows_of([*timeline.records()]) == ([], [])


@pytest.mark.parametrize("left_s", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("seconds", [20, 21, 22])
def test_time_after_the_last_operation_is_no_time_of_steps(seconds: int, left_s: float) -> None:
    rank = Rank([("world", "AllReduce", size * MB) for size in (25, 26, 125)], 0.06)
    whole = [*chain.from_iterable(rank.second(second) for second in range(seconds))]
    steps = (int(seconds / 0.06) + int((1 - left_s) / 0.06)) * 3
    last = next(rank.second(seconds))
    cut = steps - last.sequences[0]
    partial = untimed("world", "AllReduce", last.sizes_bytes[:cut], last.sequences[0], seconds)
    running, last = rows_of([*whole, partial])
    rows = [*running, *last]

    assert rows[-1].step == steps // 3
    for row in rows:
        assert row.step_time_s is None or row.step_time_s == pytest.approx(0.06, rel=0.03)


def test_a_first_step_of_one_large_bucket_counts_without_start_times_too() -> None:
    step = [("world", "AllReduce", size * MB) for size in (25, 26, 26, 26, 125)]
    rank = Rank(step, 0.25, before=[228 * MB])
    rows, last = rows_of([*chain.from_iterable(rank.second(second) for second in range(30))])

    assert [*rows, *last][-1].step == 1 + 120


def job_with(timeline: Timeline) -> JobState:
    job = JobState("job", Limits(), AggregatorCounters())
    for times in timeline.records():
        job.steps_by(times, RecordSource(agent_id="a", node="n", sent_unix_s=0.0, now_s=0.0))
    return job


def ended(timeline: Timeline) -> Event:
    return Event(
        kind=EventKind.JOB_ENDED, time_unix_ns=timeline.ends_us[-1] * 1000, message="Ended.", job="job"
    )


def test_a_job_shows_its_last_steps_once_it_has_ended() -> None:
    timeline = trained(lambda line, _: line.step([FSDP]), 16)
    job = job_with(timeline)
    assert job.step_source is None
    job.event(ended(timeline))

    assert (job.step_source, job.steps.last_step) == (StepSource.NCCL, 16)


def test_an_end_changes_nothing_where_all_is_shown() -> None:
    timeline = trained(lambda line, _: line.step([DDP]), 60)
    job = job_with(timeline)
    before = job.step_table()
    job.event(ended(timeline))

    assert job.step_table().step.tolist() == before.step.tolist()


@pytest.mark.parametrize("steps", [40, 41])
def test_of_a_step_with_its_longest_pause_inside_the_last_part_counts_at_the_end(steps: int) -> None:
    # Two models: the second one's forward pass takes longer than all between two steps.
    first = [Op("AllReduce", size * MB, 5_000 if at else 30_000) for at, size in enumerate((25, 26, 60))]
    second = [Op("AllReduce", size * MB, 5_000 if at else 90_000) for at, size in enumerate((40, 41, 90))]
    # DDP's buckets are others in the first step.
    at_once = [Op("AllReduce", 282 * MB, 30_000)]
    timeline = trained(lambda line, number: line.step([[*first, *second] if number else at_once]), steps)
    found = OperationSteps()
    shown = chain.from_iterable(found.put(times).rows for times in timeline.records())
    rows = [*shown, *found.end("job").rows]

    assert [row.step for row in rows] == list(range(2, steps + 1))
    assert rows[-1].time_unix_ns == timeline.ends_us[-1] * 1000
    # The time of a part is not that of a step.
    assert rows[-1].step_time_s is None
