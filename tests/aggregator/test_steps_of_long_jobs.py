"""Steps by NCCL operations of jobs that run for long: what changes later is not how many micro-batches."""

from __future__ import annotations

import pytest

from tests.aggregator.test_exact_steps import (
    BACKWARD,
    FORWARD,
    FSDP,
    MB,
    SECOND_US,
    Op,
    Timeline,
    assert_exact,
    rows_of,
    trained,
)
from tests.aggregator.test_steps_counted_by_log import played

STEPS_BEFORE, STEPS_SINCE, PRINTED_EVERY = 560, 130, 10
EVALUATED_EVERY, EVALUATIONS = 150, 9
WAITS_US = 20_000
"""For a loader, in every step of which the GPU is not ahead."""


def late_loader(line: Timeline, number: int, *, since: int = STEPS_BEFORE) -> None:
    """From a step on the loader is slow, and a host that waits for its GPU every 10 steps is later then."""
    slow = number >= since
    waits_us = WAITS_US * (3 if number % PRINTED_EVERY == 0 else 1) if slow else 4_000
    line.step([FSDP], pause_us=waits_us, lead_us=500 if slow else 30_000)


def test_a_loader_that_becomes_slow_does_not_make_one_step_of_ten() -> None:
    timeline = trained(late_loader, STEPS_BEFORE + STEPS_SINCE)
    rows, _ = rows_of(timeline)
    assert rows[-1].step >= STEPS_BEFORE + STEPS_SINCE - 2
    assert_exact(rows, timeline.ends_us)


def test_nor_after_a_minute_where_the_log_has_counted_the_same_steps() -> None:
    since = 200
    timeline = trained(lambda line, number: late_loader(line, number, since=since), since + STEPS_SINCE)
    lines = [
        (number, timeline.ends_us[number - 1] / 1e6 + 0.05)
        for number in range(PRINTED_EVERY, since, PRINTED_EVERY)
    ]
    job = played(timeline, lines)
    newest = job.step_table()
    assert newest.step[-1] >= since + STEPS_SINCE - 2
    assert job.operation_pace is not None
    assert job.operation_pace.doubt is None


@pytest.mark.parametrize("layers", [1, 2])
def test_evaluations_that_reduce_a_number_rarely_do_not_stop_the_steps(layers: int) -> None:
    """Of few steps operations are held: between two evaluations none is among them."""
    evaluation = [*([Op("AllGather", 100 * MB, 100)] * 40), Op("AllReduce", 4, 2 * SECOND_US)]

    def make(line: Timeline, number: int) -> None:
        line.step([[*FORWARD, *(BACKWARD * layers)]])
        if number % EVALUATED_EVERY == EVALUATED_EVERY - 1:
            line.step([evaluation])
            line.ends_us.pop()

    timeline = trained(make, EVALUATED_EVERY * EVALUATIONS - 1)
    rows, _ = rows_of(timeline)
    assert rows[-1].step >= EVALUATED_EVERY * EVALUATIONS - 4
    late_us = [row.time_unix_ns / 1000 - timeline.ends_us[row.step - 1] for row in rows[-100:]]
    assert max(map(abs, late_us)) < SECOND_US


def test_gradients_that_are_compressed_from_the_tenth_step_on_make_no_thousand_steps_of_the_first_ten() -> (
    None
):
    whole, buckets, after = 10, 8, 90
    first = [Op("AllReduce", 64 * MB, 15_000, 9_000)] * buckets
    small = [
        one for _ in range(buckets) for one in (Op("AllReduce", 192 * 1024, 9_000), Op("AllReduce", MB, 900))
    ]

    timeline = trained(lambda line, number: line.step([first if number < whole else small]), whole + after)
    rows, _ = rows_of(timeline)
    assert whole + after - 8 <= rows[-1].step <= whole + after
