"""Steps by NCCL operations of which some were not reported."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import pytest

from perfd.aggregator.operations import OperationSteps
from perfd.model import CollectiveTimes, TrainingStep
from tests.aggregator.test_exact_steps import DDP, MB, Op, Timeline, assert_exact, trained

LAYERS = [Op("AllReduce", size * MB, 3_000) for size in (33, 34, 35)] * 6
MODEL = [Op("AllReduce", 120 * MB, 60_000), *LAYERS]
"""Layers are alike; the head is not."""


def without(times: CollectiveTimes, lost: set[int]) -> CollectiveTimes | None:
    """The report if these operations had been overwritten before the agent read them."""
    starts = list(accumulate(times.start_increments_us))
    kept = [at for at, sequence in enumerate(times.sequences) if sequence not in lost]
    if not kept:
        return None
    return replace(
        times,
        count=len(kept),
        total_bytes=float(sum(times.sizes_bytes[at] for at in kept)),
        sequences=[times.sequences[at] for at in kept],
        durations_ns=[times.durations_ns[at] for at in kept],
        sizes_bytes=[times.sizes_bytes[at] for at in kept],
        start_increments_us=[after - before for before, after in pairwise((0, *(starts[at] for at in kept)))],
        queued_us=[times.queued_us[at] for at in kept],
    )


def rows_of(records: Iterator[CollectiveTimes | None]) -> tuple[list[TrainingStep], list[list[TrainingStep]]]:
    """The rows that stand at the end, and those that were shown and taken back."""
    steps, rows, dropped = OperationSteps(), list[TrainingStep](), list[list[TrainingStep]]()
    for times in records:
        if times is None:
            continue
        found = steps.put(times)
        if found.anew and rows:
            dropped.append(rows)
            rows = []
        rows = [*rows, *found.rows]
    return rows, dropped


def lossy(timeline: Timeline, lost: set[int]) -> Iterator[CollectiveTimes | None]:
    return (without(times, lost) for times in timeline.records())


@pytest.mark.parametrize("step", [DDP, MODEL], ids=["buckets", "layers"])
@pytest.mark.parametrize("seed", range(8))
def test_single_lost_operations_cost_no_step_and_move_no_end(step: Sequence[Op], seed: int) -> None:
    chance = random.Random(seed)
    timeline = trained(lambda line, _: line.step([step]), 80, seed=seed)
    operations, ends = 80 * len(step), 80
    lost = {chance.randrange(15 * len(step), operations - 1) for _ in range(6)}
    rows, dropped = rows_of(lossy(timeline, lost))

    assert_exact(rows, timeline.ends_us)
    assert not dropped
    assert rows[-1].step == ends
    # A step whose last operation lacks shares a row with the next one, and no row ends at an estimate.
    unseen = {1 + sequence // len(step) for sequence in lost if (sequence + 1) % len(step) == 0}
    assert {row.step for row in rows} == set(range(2, 81)) - unseen


@pytest.mark.parametrize("lost_steps", [1, 3])
def test_steps_go_on_after_some_were_not_reported_at_all(lost_steps: int) -> None:
    timeline = trained(lambda line, _: line.step([MODEL]), 60)
    first = 50 * len(MODEL) + 7
    rows, _ = rows_of(lossy(timeline, set(range(first, first + lost_steps * len(MODEL)))))

    assert_exact(rows, timeline.ends_us)
    assert rows[-1].step == 60
    assert max(row.steps_covered for row in rows) == 1 + lost_steps


def test_what_another_phase_did_in_a_gap_is_not_made_up() -> None:
    timeline = trained(lambda line, _: line.step([DDP]), 40)
    lost_from = 40 * len(DDP)
    other = [Op("AllReduce", size * MB, 5_000) for size in (7, 9, 3, 8)]
    for _ in range(60):
        timeline.step([other])
    rows, _ = rows_of(lossy(timeline, set(range(lost_from - 3, lost_from + 3))))

    ends = {end: 1 + number for number, end in enumerate(timeline.ends_us)}
    assert all((row.time_unix_ns or 0) // 1000 in ends for row in rows)


def test_reports_whose_operations_are_not_in_order_are_taken_by_sequence_numbers() -> None:
    timeline = trained(lambda line, _: line.step([MODEL]), 60)
    chance = np.random.default_rng(1)

    def shuffled(times: CollectiveTimes) -> CollectiveTimes:
        starts = np.cumsum(times.start_increments_us)
        order = chance.permutation(len(starts))
        columns = (times.sequences, times.durations_ns, times.sizes_bytes, times.queued_us)
        sequences, lasted, sizes, queued = (np.array(column)[order].tolist() for column in columns)
        increments = np.diff(starts[order], prepend=0).tolist()
        return replace(
            times,
            sequences=sequences,
            durations_ns=lasted,
            sizes_bytes=sizes,
            queued_us=queued,
            start_increments_us=increments,
        )

    rows, _ = rows_of(shuffled(times) for times in timeline.records())

    assert_exact(rows, timeline.ends_us)
    assert rows[-1].step == 60


@pytest.mark.parametrize("seed", range(6))
def test_random_operations_with_gaps_show_no_steps(seed: int) -> None:
    chance = random.Random(seed)

    def train(line: Timeline, _: int) -> None:
        line.step([[Op("AllReduce", chance.randrange(1, 200) * MB, chance.randrange(1_000, 90_000))]])

    timeline = trained(train, 600, seed=seed)
    rows, _ = rows_of(lossy(timeline, {chance.randrange(600) for _ in range(30)}))

    assert rows == []


def test_steps_do_not_move_to_smaller_operations_while_an_evaluation_interrupts_them() -> None:
    buffers = Op("Broadcast", 200 << 10, 1_000, 200)
    timeline = trained(lambda line, _: line.step([[buffers, *DDP]]), 40)
    chance = random.Random(3)
    for _ in range(100):
        timeline.step([[buffers, Op("AllReduce", chance.randrange(1, 200) * MB, 40_000)]])
    for _ in range(160):
        timeline.step([[buffers, *DDP]])
    rows, dropped = rows_of(iter(timeline.records()))

    assert not dropped
    assert rows[-1].time_unix_ns == timeline.ends_us[-1] * 1000


@pytest.mark.parametrize("step", [DDP, MODEL], ids=["buckets", "layers"])
def test_steps_go_on_by_another_rank_if_the_first_one_lacks_records(step: Sequence[Op]) -> None:
    timeline = trained(lambda line, _: line.step([step]), 900)
    first = [*timeline.records(rank=0)]
    every = [*first[: len(first) // 4], *timeline.records(rank=1)]
    rows, dropped = rows_of(iter(sorted(every, key=lambda one: (one.end_unix_ns, one.rank))))

    assert not dropped
    assert_exact(rows, timeline.ends_us)
    assert rows[-1].step == 900
    # For half a minute nothing shows that the rank is gone; that time is one row.
    assert sum(row.steps_covered > 1 for row in rows) == 1
