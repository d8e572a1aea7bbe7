"""Steps by NCCL operations of which it is known when they began."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
import pytest

from perfd.aggregator.operations import OperationSteps
from perfd.model import CollectiveTimes, TimingSource, TrainingStep

MB = 1 << 20
SECOND_US = 10**6


@dataclass(frozen=True)
class Op:
    """One operation: what it is, the compute before it, and how long it runs."""

    operation: str
    size: int
    after_us: int
    lasts_us: int = 1_000


DDP = [Op("AllReduce", size * MB, 6_000 if at else 70_000) for at, size in enumerate((25, 26, 26, 26, 125))]
FORWARD = [Op("AllGather", (262 if at == 0 else 100) * MB, 2_000 if at else 100) for at in range(17)]
BACKWARD = [
    one
    for at in range(17)
    for one in (Op("AllGather", 100 * MB, 2_000), Op("ReduceScatter", (262 if at == 16 else 100) * MB, 2_000))
]
FSDP = [*FORWARD, *BACKWARD]
OPTIMIZER_US = 4_000


class Timeline:
    """What a rank does, by the clock; `ends` are those of steps."""

    def __init__(self, *, seed: int = 1, lead_us: int = 30_000, jitter: float = 0.03) -> None:
        self._random = random.Random(seed)
        self._jitter = jitter
        self._lead_us = lead_us
        self._now_us = 1_000_000 * SECOND_US + 123_456
        self._begun_us = self._now_us
        self._done: dict[str, list[tuple[int, int, int, int, int]]] = {}
        self.ends_us: list[int] = []

    def step(
        self, parts: Sequence[Sequence[Op]], *, pause_us: int = OPTIMIZER_US, lead_us: int | None = None
    ) -> None:
        """Micro-batches, then a pause."""
        lead = self._lead_us if lead_us is None else lead_us
        for part in parts:
            for one in part:
                jitter = self._random.uniform(1 - self._jitter, 1 + self._jitter)
                start = self._now_us + round(one.after_us * jitter)
                done = self._done.setdefault(one.operation, [])
                done.append((len(done), start, one.lasts_us, one.size, lead))
                self._now_us = start + one.lasts_us
        self.ends_us.append(self._now_us)
        self._now_us += pause_us

    def records(self, first_window_us: int = 0, rank: int = 0) -> Iterator[CollectiveTimes]:
        """Second by second."""
        begin_us = self._begun_us - first_window_us
        while begin_us < self._now_us:
            end_us = begin_us + SECOND_US
            for operation, done in self._done.items():
                within = [one for one in done if begin_us <= one[1] + one[2] < end_us]
                if within:
                    yield record(operation, within, begin_us, end_us, rank=rank)
            begin_us = end_us


def record(
    operation: str,
    done: Sequence[tuple[int, int, int, int, int]],
    begin_us: int,
    end_us: int,
    *,
    rank: int = 0,
) -> CollectiveTimes:
    sequences, starts, lasted, sizes, leads = zip(*done, strict=True)
    return CollectiveTimes(
        job="job",
        rank=rank,
        communicator="world",
        operation=operation,
        timing=TimingSource.GPU,
        start_unix_ns=begin_us * 1000,
        end_unix_ns=end_us * 1000,
        count=len(done),
        total_bytes=float(sum(sizes)),
        total_s=sum(lasted) / 1e6,
        min_s=min(lasted) / 1e6,
        max_s=max(lasted) / 1e6,
        sequences=sequences,
        durations_ns=[one * 1000 for one in lasted],
        sizes_bytes=sizes,
        start_increments_us=[after - before for before, after in pairwise((begin_us, *starts))],
        queued_us=leads,
    )


def rows_of(timeline: Timeline) -> tuple[list[TrainingStep], OperationSteps]:
    steps = OperationSteps()
    rows: list[TrainingStep] = []
    for times in timeline.records():
        found = steps.put(times)
        rows = [*([] if found.anew else rows), *found.rows]
    return rows, steps


def rows_of_ranks(*timelines: Timeline) -> tuple[list[TrainingStep], OperationSteps]:
    """As `rows_of`, with a rank for each timeline."""
    steps = OperationSteps()
    rows: list[TrainingStep] = []
    every = [times for rank, timeline in enumerate(timelines) for times in timeline.records(rank=rank)]
    for times in sorted(every, key=lambda one: (one.end_unix_ns, one.rank)):
        found = steps.put(times)
        rows = [*([] if found.anew else rows), *found.rows]
    return rows, steps


def trained(
    make: Callable[[Timeline, int], None], steps: int, *, seed: int = 1, jitter: float = 0.03
) -> Timeline:
    timeline = Timeline(seed=seed, jitter=jitter)
    for number in range(steps):
        make(timeline, number)
    return timeline


def assert_exact(rows: Sequence[TrainingStep], ends_us: Sequence[int]) -> None:
    """Every row ends where a step does, no step is counted twice or left out, and times are exact."""
    numbers = {end: 1 + number for number, end in enumerate(ends_us)}
    assert all(row.time_unix_ns is not None for row in rows)
    ends = [numbers[(row.time_unix_ns or 0) // 1000] for row in rows]
    assert [row.step for row in rows] == ends
    assert [row.steps_covered for row in rows[1:]] == [after - before for before, after in pairwise(ends)]
    for before, row in pairwise(rows):
        lasted_s = ((row.time_unix_ns or 0) - (before.time_unix_ns or 0)) / 1e9
        assert row.step_time_s == pytest.approx(lasted_s / row.steps_covered)


def test_each_step_of_ddp_ends_with_its_last_reduction_and_is_a_row() -> None:
    timeline = trained(lambda line, _: line.step([DDP]), 100, jitter=0.002)
    rows, steps = rows_of(timeline)

    assert_exact(rows, timeline.ends_us)
    # Step 2 is the first that begins after a known end, and the last one is complete.
    assert (rows[0].step, rows[-1].step) == (2, 100)
    assert steps.pace is not None
    assert (steps.pace.exact, steps.pace.certain, steps.pace.per_step) == (True, True, 5)


def test_a_step_that_is_longer_shows_in_its_own_row() -> None:
    timeline = trained(lambda line, number: line.step([DDP], pause_us=500_000 if number == 60 else 0), 80)
    rows, _ = rows_of(timeline)

    slow = [row.step for row in rows if (row.step_time_s or 0.0) > 0.4]
    assert slow == [62]


def test_short_steps_share_a_row() -> None:
    quick = [Op("AllReduce", size * MB, 1_000) for size in (25, 26, 125)]
    timeline = trained(lambda line, _: line.step([quick], pause_us=3_000), 2_000)
    rows, _ = rows_of(timeline)

    assert_exact(rows, timeline.ends_us)
    assert {row.steps_covered for row in rows} <= {10, 11, 12}


@pytest.mark.parametrize("parts", [2, 4])
def test_the_optimizer_distinguishes_steps_from_micro_batches(parts: int) -> None:
    timeline = trained(lambda line, _: line.step([FSDP] * parts), 80)
    rows, steps = rows_of(timeline)

    assert steps.pace is not None
    assert (steps.pace.certain, steps.pace.per_step) == (True, 17 * parts)
    assert_exact(rows, timeline.ends_us)
    assert rows[-1].step >= 78


def test_where_nothing_is_longer_a_micro_batch_counts_as_a_step_and_that_is_known() -> None:
    timeline = trained(lambda line, _: line.step([FSDP], pause_us=0), 80)
    rows, steps = rows_of(timeline)

    assert steps.pace is not None
    assert (steps.pace.certain, steps.pace.exact) == (False, True)
    assert_exact(rows, timeline.ends_us)


def test_a_pause_in_which_the_host_waits_for_the_gpu_does_not_end_a_step() -> None:
    def train(line: Timeline, number: int) -> None:
        # A loss is printed after every fifth step.
        line.step(
            [FSDP], pause_us=8_000 if number % 5 == 4 else 4_000, lead_us=500 if number % 5 == 0 else 30_000
        )

    rows, steps = rows_of(trained(train, 100))

    assert steps.pace is not None
    assert not steps.pace.certain
    assert len(rows) >= 70


@pytest.mark.parametrize("seed", range(4))
def test_random_pauses_do_not_end_steps(seed: int) -> None:
    chance = random.Random(seed)
    timeline = trained(lambda line, _: line.step([FSDP], pause_us=chance.randrange(20_000)), 120, seed=seed)
    _, steps = rows_of(timeline)

    assert steps.pace is not None
    assert not steps.pace.certain


@pytest.mark.parametrize("seed", range(4))
def test_a_job_that_does_not_repeat_has_no_steps(seed: int) -> None:
    chance = random.Random(seed)

    def train(line: Timeline, _: int) -> None:
        line.step([[Op("AllReduce", chance.randrange(1, 200) * MB, chance.randrange(1_000, 90_000))]])

    rows, steps = rows_of(trained(train, 600, seed=seed))

    assert (rows, steps.pace) == ([], None)


def test_an_evaluation_between_steps_is_part_of_one_row() -> None:
    def train(line: Timeline, number: int) -> None:
        line.step([DDP], pause_us=3_000_000 if number == 50 else 4_000)

    timeline = trained(train, 100)
    rows, _ = rows_of(timeline)

    assert_exact(rows, timeline.ends_us)
    assert rows[-1].step >= 98


def test_other_buckets_in_the_first_step_do_not_change_the_count() -> None:
    # DDP reduces by the order of parameters first, and by that of the backward pass from then on.
    first = [Op("AllReduce", size * MB, 10_000) for size in (28, 200)]
    timeline = trained(lambda line, number: line.step([DDP if number else first]), 60)

    assert_exact(rows_of(timeline)[0], timeline.ends_us)


def test_what_repeats_while_a_job_starts_makes_way_for_its_steps() -> None:
    timeline = Timeline()
    flags = [Op("AllGather", 8192, 300_000)]
    for _ in range(40):
        timeline.step([flags], pause_us=0)
    started = len(timeline.ends_us)
    for _ in range(60):
        timeline.step([DDP])
    rows, steps = rows_of(timeline)

    assert steps.pace is not None
    assert steps.pace.operation == "AllReduce"
    assert_exact(rows, timeline.ends_us[started:])
    assert rows[-1].step == 60


ALIKE = [Op("AllReduce", 25 * MB, 4_000 if at else 80_000) for at in range(12)]
"""Buckets of one size."""
NORM = Op("AllReduce", 8, 500, 100)


def assert_exact_between(rows: Sequence[TrainingStep], ends_us: Sequence[int]) -> None:
    """As `assert_exact`; where no sizes differ the first step's number may be off by one."""
    ended = {end: number for number, end in enumerate(ends_us)}
    numbers = [ended[(row.time_unix_ns or 0) // 1000] for row in rows]
    assert len({row.step - number for row, number in zip(rows, numbers, strict=True)}) == 1
    assert [row.steps_covered for row in rows[1:]] == [after - before for before, after in pairwise(numbers)]


@pytest.mark.parametrize("buckets", [2, 3, 12, 60])
def test_buckets_of_one_size_show_steps_by_the_pauses_between_them(buckets: int) -> None:
    step = [Op("AllReduce", 25 * MB, 4_000 if at else 120_000 + 3_000 * buckets) for at in range(buckets)]
    timeline = trained(lambda line, _: line.step([step]), 80)
    rows, steps = rows_of_ranks(timeline, timeline)

    assert steps.pace is not None
    assert (steps.pace.exact, steps.pace.certain, steps.pace.per_step) == (True, False, buckets)
    assert_exact_between(rows, timeline.ends_us)
    assert rows[-1].step == pytest.approx(80, abs=1)
    # Nothing is left out once they are known.
    assert len(rows) >= 75


def test_numbers_between_buckets_of_one_size_change_nothing() -> None:
    timeline = trained(lambda line, _: line.step([[*ALIKE, NORM]]), 60)
    _, steps = rows_of(timeline)

    assert steps.pace is not None
    assert steps.pace.per_step == 13


def test_where_a_number_follows_each_operation_each_is_a_step_though_every_fifth_stalls() -> None:
    reduction = [Op("AllReduce", 4_000 * MB, 150_000), NORM]
    timeline = trained(
        lambda line, number: line.step([reduction], pause_us=700_000 if number % 5 == 4 else 4_000), 150
    )
    rows, steps = rows_of(timeline)

    assert steps.pace is not None
    assert (steps.pace.certain, steps.pace.per_step) == (True, 2)
    assert {row.steps_covered for row in rows} == {1}
    assert rows[-1].step == pytest.approx(150, abs=1)


@pytest.mark.parametrize("stall_us", [300_000, 900_000])
def test_stalls_and_evaluations_at_intervals_do_not_make_a_step_of_several(stall_us: int) -> None:
    def train(line: Timeline, number: int) -> None:
        line.step([ALIKE], pause_us=stall_us if number > 30 and number % 5 == 0 else OPTIMIZER_US)

    timeline = trained(train, 140)
    rows, steps = rows_of_ranks(timeline, timeline)

    assert steps.pace is not None
    assert steps.pace.per_step == len(ALIKE)
    assert_exact_between(rows, timeline.ends_us)
    assert sum((row.step_time_s or 0.0) > 0.4 for row in rows) == 21


def test_accumulation_that_reduces_once_a_step_is_a_longer_step() -> None:
    accumulating = [Op("AllReduce", 25 * MB, 4_000 if at else 400_000) for at in range(12)]
    timeline = trained(lambda line, _: line.step([accumulating]), 60)
    rows, _ = rows_of(timeline)

    assert_exact_between(rows, timeline.ends_us)
    assert rows[-1].step_time_s == pytest.approx(0.46, rel=0.05)


def test_the_optimizer_distinguishes_steps_from_micro_batches_of_layers_of_one_size() -> None:
    scattered = [Op("ReduceScatter", 100 * MB, 3_000 if at else 60_000) for at in range(10)]
    timeline = trained(lambda line, _: line.step([scattered] * 4), 60)
    rows, steps = rows_of(timeline)

    assert steps.pace is not None
    # Other work of each fourth step would look the same.
    assert (steps.pace.per_step, steps.pace.certain) == (40, False)
    assert_exact_between(rows, timeline.ends_us)


def test_pauses_show_steps_only_if_those_of_another_rank_do() -> None:
    timeline = trained(lambda line, _: line.step([ALIKE]), 60)
    shifted = Timeline()
    shifted.step([ALIKE[:5]], pause_us=0)
    for _ in range(60):
        shifted.step([ALIKE])
    chance = random.Random(1)
    uneven = trained(
        lambda line, _: line.step([[Op("AllReduce", 25 * MB, chance.randrange(1, 20_000))]], pause_us=0), 720
    )

    assert rows_of_ranks(timeline, timeline)[1].pace is not None
    assert rows_of_ranks(timeline, shifted)[0] == []
    assert rows_of_ranks(timeline, uneven)[0] == []


@pytest.mark.parametrize("each_time", [0.002, 0.02])
def test_operations_with_wandering_intervals_are_not_steps(each_time: float) -> None:
    chance, intervals_us = random.Random(3), [100_000.0]
    for _ in range(600):
        intervals_us.append(intervals_us[-1] * chance.lognormvariate(0, each_time))
    timeline = trained(
        lambda line, number: line.step([[Op("AllReduce", 25 * MB, 1)]], pause_us=round(intervals_us[number])),
        600,
    )

    assert rows_of(timeline)[0] == []


@pytest.mark.parametrize("seed", range(4))
def test_random_operations_of_one_size_are_not_steps(seed: int) -> None:
    chance = random.Random(seed)

    def train(line: Timeline, _: int) -> None:
        line.step([[Op("AllReduce", 25 * MB, 1 + round(chance.expovariate(1 / 90_000)))]], pause_us=0)

    timeline = trained(train, 900, seed=seed)

    assert rows_of(timeline)[0] == []
    assert rows_of_ranks(timeline, timeline)[0] == []


def test_operations_that_were_not_reported_do_not_move_the_ends_of_steps() -> None:
    timeline = trained(lambda line, _: line.step([ALIKE]), 120)
    steps, rows = OperationSteps(), []
    for number, times in enumerate(timeline.records()):
        if number != 8:
            found = steps.put(times)
            rows = [*([] if found.anew else rows), *found.rows]

    ends = {end * 1000 for end in timeline.ends_us}
    assert all(row.time_unix_ns in ends for row in rows)
    assert rows[-1].step == pytest.approx(120, abs=1)


JAX = [Op("AllReduce", 72 * MB, 400 if at else 9_000, 330) for at in range(8)]
"""A step of data parallelism, 14 ms."""


def test_steps_of_14_ms_of_reductions_of_one_size_are_found_within_four_seconds() -> None:
    timeline = trained(lambda line, _: line.step([JAX], pause_us=0), 290)
    rows, steps = rows_of_ranks(timeline, timeline)

    assert steps.pace is not None
    assert steps.pace.per_step == 8
    assert_exact_between(rows, timeline.ends_us)
    assert {row.steps_covered for row in rows} == {7}
    assert rows[-1].step == pytest.approx(290, abs=9)


def sampled(times: CollectiveTimes, stride: int) -> CollectiveTimes:
    """As agents report at high rates: only operations whose number is a multiple of `stride`."""
    begun = accumulate(times.start_increments_us)
    kept = [
        (number, lasted, size, start, queued)
        for number, lasted, size, start, queued in zip(
            times.sequences, times.durations_ns, times.sizes_bytes, begun, times.queued_us, strict=True
        )
        if number % stride == 0
    ]
    sequences, durations_ns, sizes_bytes, starts_us, queued_us = zip(*kept, strict=True)
    return replace(
        times,
        sequences=sequences,
        durations_ns=durations_ns,
        sizes_bytes=sizes_bytes,
        start_increments_us=[after - before for before, after in pairwise((0, *starts_us))],
        queued_us=queued_us,
    )


@pytest.mark.parametrize(
    "strides", [[2], [1, 2], [1, 1, 4, 4, 4, 2]], ids=["half", "half in turns", "half and fourth in turns"]
)
def test_every_second_or_fourth_operation_shows_as_many_steps(strides: Sequence[int]) -> None:
    timeline = trained(lambda line, _: line.step([JAX], pause_us=0), 900)
    steps, rows = OperationSteps(), []
    for second, times in enumerate(timeline.records()):
        found = steps.put(sampled(times, strides[second % len(strides)]))
        rows = [*([] if found.anew else rows), *found.rows]

    assert rows[-1].step == pytest.approx(900, abs=80 if strides == [1, 2] else 8)
    assert sum(row.steps_covered for row in rows[1:]) == rows[-1].step - rows[0].step
    for row in rows:
        assert row.step_time_s == pytest.approx(0.01444, rel=0.03)


@pytest.mark.parametrize("stride", [2, 4])
def test_a_lost_second_where_an_agent_begins_to_leave_out_operations_stops_nothing(stride: int) -> None:
    timeline = trained(lambda line, _: line.step([JAX], pause_us=0), 900)
    steps, rows = OperationSteps(), []
    for second, times in enumerate(timeline.records()):
        if second != 5:
            found = steps.put(times if second < 5 else sampled(times, stride))
            rows = [*([] if found.anew else rows), *found.rows]

    assert rows[-1].step == pytest.approx(900, abs=80)
    assert rows[-1].step_time_s == pytest.approx(0.01444, rel=0.03)


@pytest.mark.parametrize("sparse", [{6}, {6, 7}, {6, 12}])
def test_a_moment_in_which_an_agent_leaves_out_every_second_operation_costs_no_step(sparse: set[int]) -> None:
    timeline = trained(lambda line, _: line.step([DDP]), 160)
    steps, ends = OperationSteps(), {}
    for second, times in enumerate(timeline.records()):
        for row in steps.put(sampled(times, 2) if second in sparse else times).rows:
            ends[second] = row.step

    assert set(range(5, max(ends) + 1)) <= set(ends)
    assert max(ends.values()) == pytest.approx(160, abs=2)


@pytest.mark.parametrize("buckets", [6, 8])
def test_every_fourth_of_few_operations_shows_no_steps_instead_of_wrong_ones(buckets: int) -> None:
    step = [Op("AllReduce", 72 * MB, 400 if at else 9_000, 330) for at in range(buckets)]
    timeline = trained(lambda line, _: line.step([step], pause_us=0), 900)
    steps = OperationSteps()

    assert [row for times in timeline.records() for row in steps.put(sampled(times, 4)).rows] == []


def uneven_micro_batch(chance: random.Random) -> list[Op]:
    """FSDP2: parameters are gathered right after the reduction, and forward passes take 60 to 150 ms."""
    gathers = [replace(one, after_us=150) for one in FORWARD]
    return [*gathers, replace(BACKWARD[0], after_us=chance.randrange(60_000, 150_000)), *BACKWARD[1:]]


@pytest.mark.parametrize(("parts", "optimizer_us"), [(2, 2_600), (4, 2_600), (2, 600)])
def test_the_next_gather_distinguishes_steps_where_forward_passes_vary_more_than_an_optimizer_takes(
    parts: int, optimizer_us: int
) -> None:
    chance = random.Random(1)
    timeline = trained(
        lambda line, _: line.step([uneven_micro_batch(chance) for _ in range(parts)], pause_us=optimizer_us),
        80,
    )
    rows, steps = rows_of(timeline)

    assert steps.pace is not None
    assert (steps.pace.certain, steps.pace.per_step) == (True, 17 * parts)
    assert_exact(rows, timeline.ends_us)
    assert rows[-1].step >= 78


@pytest.mark.parametrize("optimizer_us", [0, 250])
def test_gathers_that_begin_equally_late_after_each_micro_batch_show_no_steps(optimizer_us: int) -> None:
    chance = random.Random(1)
    timeline = trained(
        lambda line, _: line.step([uneven_micro_batch(chance) for _ in range(2)], pause_us=optimizer_us), 80
    )
    _, steps = rows_of(timeline)

    assert steps.pace is not None
    assert not steps.pace.certain


def test_a_first_exchange_of_half_the_bytes_of_a_step_is_not_a_step() -> None:
    timeline = Timeline()
    timeline.step([[Op("AllReduce", 125 * MB, 1_000)]], pause_us=2_000_000)
    before = len(timeline.ends_us)
    for _ in range(60):
        timeline.step([[Op("AllReduce", 250 * MB, 200_000)]], pause_us=0)
        timeline.step([[Op("Broadcast", 4, 1_000)]])
    rows, _ = rows_of(timeline)

    assert_exact(rows, timeline.ends_us[before::2])
    assert rows[-1].step == 60


@pytest.mark.parametrize("interval_us", [14_000, 200_000])
def test_single_reductions_with_a_number_each_are_steps_however_short_and_uneven(interval_us: int) -> None:
    chance = random.Random(1)

    def train(line: Timeline, _: int) -> None:
        reduction = Op("AllReduce", 20 * MB, chance.randrange(interval_us // 2, 2 * interval_us))
        line.step([[reduction]], pause_us=0)
        line.step([[Op("Broadcast", 4, 1_000, 10)]], pause_us=0)

    timeline = trained(train, 5_000_000 // interval_us)
    rows, steps = rows_of(timeline)

    assert steps.pace is not None
    assert_exact_between(rows, timeline.ends_us[::2])


@pytest.mark.parametrize("scalars", [1, 3, 4])
def test_numbers_that_come_together_after_each_step_count_micro_batches(scalars: int) -> None:
    # Tensor parallel: copies of parameters are broadcast in each of five micro-batches, whose pauses vary.
    chance = random.Random(1)

    def train(line: Timeline, _: int) -> None:
        parts = [
            [
                Op("Broadcast", size, after)
                for size, after in ((32_768, 90_000), (16_384, 1_000), (8 * MB, 1_000))
            ]
            for _ in range(5)
        ]
        parts = [[replace(part[0], after_us=chance.randrange(60_000, 120_000)), *part[1:]] for part in parts]
        line.step([*parts, [Op("AllReduce", 4, 300, 10)] * scalars], pause_us=0)

    timeline = trained(train, 120)
    rows, steps = rows_of(timeline)

    assert steps.pace is not None
    # A loss that is printed after each fifth step would be reduced as often.
    assert (steps.pace.certain, steps.pace.per_step) == (False, 15)
    assert rows[-1].step == pytest.approx(120, abs=1)
    assert sum(row.steps_covered for row in rows[1:]) == rows[-1].step - rows[0].step


@pytest.mark.parametrize("first", [DDP, JAX], ids=["sizes", "pauses"])
def test_a_job_that_changes_its_period_goes_on_with_the_new_steps(first: Sequence[Op]) -> None:
    # A longer sequence, or a part of the model that is no longer trained.
    timeline = trained(lambda line, number: line.step([first] if number < 80 else [first[:-1]]), 300)
    rows, _ = rows_of_ranks(timeline, timeline)

    ended = [one * 1000 for one in timeline.ends_us[:80]]
    newest = [row for row in rows if row.time_unix_ns is not None and row.time_unix_ns > ended[-1]]
    assert newest
    assert {row.time_unix_ns for row in newest[-5:]} <= {one * 1000 for one in timeline.ends_us}
    assert rows[-1].step == pytest.approx(300, abs=14)


def evenly(*, numbered: bool) -> Timeline:
    timeline = Timeline()
    for _ in range(200):
        number = [Op("AllReduce", 4, 1_000)] if numbered else []
        timeline.step([[Op("AllReduce", 20 * MB, 80_000), *number]])
    return timeline


def test_single_reductions_that_are_only_evenly_apart_may_be_part_of_a_step() -> None:
    (rows, lone), (_, numbered) = rows_of(evenly(numbered=False)), rows_of(evenly(numbered=True))

    assert rows
    assert lone.pace is not None
    assert numbered.pace is not None
    assert (lone.pace.certain, numbered.pace.certain) == (False, True)


def test_steps_of_any_length_and_evaluations_with_reductions_of_a_number_keep_the_count() -> None:
    chance = random.Random(1)

    def train(line: Timeline, number: int) -> None:
        length = chance.uniform(0.5, 2.0)
        line.step([[replace(one, after_us=round(one.after_us * length)) for one in DDP]])
        if number % 25 == 24:
            line.step([[Op("AllGather", 8, 30_000)] * 20])
            line.ends_us.pop()

    timeline = trained(train, 150)
    rows, _ = rows_of(timeline)

    assert_exact(rows, timeline.ends_us)
    assert rows[-1].step == 150


def test_a_rank_whose_records_stop_does_not_stop_the_steps_of_another() -> None:
    timeline = trained(lambda line, _: line.step([ALIKE]), 100)
    steps, rows = OperationSteps(), []
    of_other = list(timeline.records(rank=1))[:6]
    for at, times in enumerate(timeline.records()):
        for one in (times, *of_other[at : at + 1]):
            found = steps.put(one)
            rows = [*([] if found.anew else rows), *found.rows]

    assert_exact_between(rows, timeline.ends_us)
    assert rows[-1].step == pytest.approx(100, abs=1)


def test_layers_alike_in_a_slow_first_step_are_not_counted_as_steps() -> None:
    layer = [Op("AllReduce", size * MB, 6_000) for size in (33, 34, 35)]
    step = [*layer * 16, Op("AllReduce", 125 * MB, 6_000)]

    def train(line: Timeline, number: int) -> None:
        slower = 4 if number == 0 else 1
        line.step([[replace(one, after_us=slower * one.after_us) for one in step]])

    timeline = trained(train, 60)
    rows, _ = rows_of(timeline)

    assert_exact(rows, timeline.ends_us)
    assert rows[-1].step == 60


def test_an_agent_near_its_limit_may_leave_out_operations_in_one_second_and_not_in_the_next() -> None:
    # As XLA's gathered gradients: 48 of one size at the end of a step.
    step = [Op("ReduceScatter", 128 * MB, 380_000 if at == 0 else 8_000) for at in range(48)]
    timeline = trained(lambda line, _: line.step([step]), 60)
    steps, rows = OperationSteps(), []
    for second, times in enumerate(timeline.records()):
        keep = 1 if second % 12 == 11 else 2
        found = steps.put(sampled(times, keep))
        rows = [*([] if found.anew else rows), *found.rows]

    # The newest rows, which are of a time with several such seconds.
    ends_us = np.array(timeline.ends_us)
    apart_us = [abs(ends_us - (row.time_unix_ns or 0) / 1000).min() for row in rows[1:]]
    assert rows[-1].step == pytest.approx(60, abs=1)
    assert max(apart_us) <= 20_000
    assert sum(row.steps_covered for row in rows[1:]) == rows[-1].step - rows[0].step


def test_a_step_of_which_the_buffer_holds_few_is_found() -> None:
    gathers = [Op("AllGather", size * MB, 1_500) for size in (128, 256, 128, 64, 128)] * 24
    half = [*gathers[:60], Op("AllGather", 32 * MB, 1_500), *gathers[60:]]
    timeline = trained(lambda line, _: line.step([half]), 60)
    rows, steps = rows_of(timeline)

    assert rows, "2,048 operations are 16 steps"
    assert steps.pace is not None
    assert not steps.pace.certain
    assert rows[-1].step == pytest.approx(60, abs=1)
