"""A log with a line every five steps, beside operations that show each step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from aggregator.support import fleet, source, step
from aggregator.test_exact_steps import DDP, FSDP, MB, Op, Timeline

from perfd.aggregator.job_summaries import JobSummaries
from perfd.aggregator.jobs.operation_step_rows import StepsWithinLines
from perfd.aggregator.limits import Limits
from perfd.aggregator.state import AggregatorState, Fleet, job_data
from perfd.analysis.data.job_data import JobData
from perfd.clock import VirtualClock
from perfd.config import AnalysisConfig
from perfd.model import JobDescription, ParallelLayout, Record, StepDoubt

SLOW = [Op(DDP[0].operation, DDP[0].size, DDP[0].after_us + 60_000), *DDP[1:]]
FAST_S, SLOW_S = 0.103, 0.163


def played(
    *,
    covered: int,
    steps: int = 60,
    slow_from: int = 41,
    resumed_at: int = 0,
    seen_s: float = np.inf,
    printed_s: float = 0.003,
) -> tuple[Fleet, Timeline]:
    """A log's lines and a rank's operations in order of time; steps from one on are slow.

    Operations more than `seen_s` after the first are missing. A line is printed `printed_s` after its step.
    """
    timeline = Timeline()
    for number in range(1, steps + 1):
        timeline.step([SLOW if number >= slow_from else DDP])
    records: list[tuple[float, Record]] = [(one.end_unix_ns / 1e9, one) for one in timeline.records()]
    records = [(time_s, one) for time_s, one in records if time_s <= records[0][0] + seen_s]
    ends_s = [end / 1e6 for end in timeline.ends_us]
    for number in range(covered, steps + 1, covered):
        time_s = ends_s[number - 1] + printed_s
        lasted_s = (ends_s[number - 1] - ends_s[max(0, number - 1 - covered)]) / covered
        line = step(
            resumed_at + number,
            job="job",
            time_s=time_s,
            step_time_s=lasted_s,
            steps_covered=covered,
        )
        records.append((time_s + 0.5, line))
    made = fleet()
    for _, record in sorted(records, key=lambda one: one[0]):
        made.apply([record], source())
    return made, timeline


def test_lines_of_several_steps_say_how_many_micro_batches_one_has_whatever_pauses_show() -> None:
    # The host pauses at each fourth micro-batch, and the optimizer runs after each sixth.
    timeline = Timeline()
    for number in range(40 * 6):
        timeline.step([FSDP], pause_us=20_000 if number % 6 == 5 else 15_000 if number % 4 == 3 else 1_000)
    ends_s = [end / 1e6 for end in timeline.ends_us[5::6]]
    records: list[tuple[float, Record]] = [(one.end_unix_ns / 1e9, one) for one in timeline.records()]
    for number in range(5, 41, 5):
        time_s = ends_s[number - 1] + 0.003
        records.append((time_s, step(number, job="job", time_s=time_s, step_time_s=1.0, steps_covered=5)))
    made = fleet()
    for _, record in sorted(records, key=lambda one: one[0]):
        made.apply([record], source())

    found = within(made)
    assert found is not None
    assert found.pace.per_step == pytest.approx(6 * 17)
    assert found.pace.doubt is None
    assert found.steps.time_unix_s == pytest.approx([ends_s[n - 1] for n in found.steps.step], abs=0.02)


PIPELINE = [Op("AllReduce", 250 * MB, 1_000_000)]
"""Embeddings of the first and the last stage: one reduction per step."""


def printed(lines: Sequence[int], *, steps: int, each: int = 1) -> tuple[Fleet, Timeline]:
    """Operations at uneven distances, and lines of a log that counts a step for `each` of these."""
    chance, timeline = random.Random(1), Timeline()
    for _ in range(steps):
        timeline.step([PIPELINE], pause_us=chance.randrange(1_000_000))
    records: list[tuple[float, Record]] = [(one.end_unix_ns / 1e9, one) for one in timeline.records()]
    for before, number in pairwise((0, *lines)):
        time_s, covered = timeline.ends_us[each * number - 1] / 1e6 + 0.003, number - before
        starts = before == 0 or (before == 1 and covered > 1)
        line = step(number, job="job", time_s=time_s, step_time_s=1.5, steps_covered=covered, warmup=starts)
        records.append((time_s, line))
    made = fleet()
    for _, record in sorted(records, key=lambda one: one[0]):
        made.apply([record], source())
    return made, timeline


def test_two_lines_ten_steps_apart_show_which_operations_are_steps_whatever_their_pauses() -> None:
    made, timeline = printed([10, 20], steps=20)
    found = within(made)

    assert found is not None
    assert found.pace.per_step == 1
    assert found.pace.doubt is None
    assert found.steps.time_unix_s == pytest.approx([timeline.ends_us[n - 1] / 1e6 for n in found.steps.step])
    assert found.steps.step[-1] == 20
    # The first line is marked as warm-up: its first five steps are the start of the job.
    assert found.steps.step[found.steps.warmup].tolist() == [*range(int(found.steps.step[0]), 6)]
    # One line less, or one step less between two, leaves open what operations count.
    assert within(printed([10], steps=19)[0]) is None
    assert within(printed([10, 19], steps=24)[0]) is None


def test_lines_that_count_half_as_many_steps_as_there_are_operations_make_none_of_these_a_step() -> None:
    assert within(printed([10, 20], steps=48, each=2)[0]) is None


def test_operations_beside_the_first_line_are_read_since_the_next_lines_may_be_of_several_steps() -> None:
    made, timeline = printed([1, 10, 20], steps=24)
    found = within(made)

    assert found is not None
    assert found.steps.step[0] <= 3
    assert found.steps.step[found.steps.warmup].tolist() == [*range(int(found.steps.step[0]), 7)]
    assert found.steps.time_unix_s == pytest.approx([timeline.ends_us[n - 1] / 1e6 for n in found.steps.step])


def within(made: Fleet) -> StepsWithinLines | None:
    """What operations show between the lines of the log."""
    job = made.jobs["job"]
    return job.operation_steps.within(job.step_table())


def snapshot(made: Fleet) -> JobData:
    return job_data(made, made.jobs["job"], now_unix_s=2e6, now_s=2e6)


@pytest.mark.parametrize("resumed_at", [0, 1000])
def test_each_step_has_its_own_time_and_the_number_that_the_log_gives_it(resumed_at: int) -> None:
    made, timeline = played(covered=5, resumed_at=resumed_at)
    data = snapshot(made)
    found = within(made)

    # Lines come before the first step that is known by operations, and after the last one.
    shown = data.steps.steps_covered.tolist()
    assert shown == sorted(shown[: shown.index(1)] + [1] * shown.count(1), reverse=True)
    assert data.operation_pace is not None
    assert found is not None
    numbers = found.steps.step - resumed_at
    assert set(found.steps.steps_covered.tolist()) == {1}
    assert found.steps.time_unix_s == pytest.approx([timeline.ends_us[n - 1] / 1e6 for n in numbers])
    assert found.steps.step_time_s[numbers >= 42] == pytest.approx(SLOW_S, rel=0.05)
    assert found.steps.step_time_s[(numbers > 20) & (numbers < 41)] == pytest.approx(FAST_S, rel=0.05)
    assert numbers[-1] >= 55


@pytest.mark.parametrize(("seen_s", "growth"), [(np.inf, SLOW_S / FAST_S - 1), (0.0, 0.0)])
def test_steps_that_become_longer_between_two_lines_are_a_growth(seen_s: float, growth: float) -> None:
    # The two lines of slow steps take 1.6 s, and all slow steps 2.1 s.
    made, _ = played(covered=5, steps=53, seen_s=seen_s)
    state = replace(AggregatorState.empty(Limits()), fleet=made)
    summaries = JobSummaries(AnalysisConfig(), state, VirtualClock())
    summaries.make(2e6)

    change = summaries.step_time_change("job")
    assert (change.growth_ratio if change else 0.0) == pytest.approx(growth, rel=0.1)


@pytest.mark.parametrize(("of_line_s", "known"), [(1.9, True), (2.1, False)])
def test_operations_that_repeat_far_more_often_than_lines_count_steps_are_parts_of_steps(
    of_line_s: float, known: bool
) -> None:
    # Twelve micro-batches in a step of the log, by its lines: none of them is a step.
    made, _ = played(covered=5, slow_from=100)
    steps = made.jobs["job"].step_table()
    lines = replace(steps, step_time_s=np.full(len(steps), of_line_s * FAST_S))
    found = made.jobs["job"].operation_steps

    assert (found.within(lines) is not None) is known
    # One line with a pause says nothing of the others.
    paused = np.append(lines.step_time_s[:-1], 10.0)
    assert (found.within(replace(lines, step_time_s=paused)) is not None) is known


@pytest.mark.parametrize(("of_row", "known"), [(1, True), (2, True), (3, False)])
def test_operations_that_repeat_far_less_often_than_lines_count_steps_are_several_steps(
    of_row: int, known: bool
) -> None:
    """As at the end of recording random133: rows of three steps, of a pipeline with one line in ten steps."""
    made, _ = played(covered=5, slow_from=100)
    steps = made.jobs["job"].step_table()
    counted = replace(steps, step=of_row * steps.step, steps_covered=of_row * steps.steps_covered)
    assert (made.jobs["job"].operation_steps.within(counted) is not None) is known


@pytest.mark.parametrize("seen_s", [3.1, 4.1, 5.1])
def test_operations_that_come_later_than_lines_keep_the_numbers_of_their_own_steps(seen_s: float) -> None:
    made, timeline = played(covered=5, seen_s=seen_s)
    found = within(made)

    assert found is not None
    assert int(found.steps.step[-1]) < 52
    assert found.steps.time_unix_s == pytest.approx([timeline.ends_us[n - 1] / 1e6 for n in found.steps.step])


@pytest.mark.parametrize(("printed_after_ratio", "off"), [(-0.3, -1), (-0.2, 0), (0.7, 0), (0.8, 1)])
def test_a_line_belongs_to_the_step_that_ends_up_to_a_quarter_of_a_step_later(
    printed_after_ratio: float, off: int
) -> None:
    # Clocks differ: a line may show a time before its step's end. Later than that it is the step before.
    made, timeline = played(covered=5, steps=62, slow_from=100, printed_s=printed_after_ratio * FAST_S)
    found = within(made)

    assert found is not None
    true_steps = [
        1 + int(np.argmin(np.abs(np.array(timeline.ends_us) / 1e6 - end_s)))
        for end_s in found.steps.time_unix_s
    ]
    assert set((found.steps.step + off - true_steps).tolist()) == {0}


def test_a_log_with_a_line_for_each_step_needs_no_operations() -> None:
    made, _ = played(covered=1)
    assert within(made) is None


def test_each_step_has_what_the_line_that_covers_it_says() -> None:
    made, _ = played(covered=5, steps=58)
    job = made.jobs["job"]
    for number in range(5, 56, 5):
        made.apply([step(number, job="job", loss=float(number), tokens_per_s=number * 10.0)], source())
    shown = snapshot(made).steps
    single = shown.steps_covered == 1

    covered = single & (shown.step <= 55)
    assert shown.tokens_per_s[covered].tolist() == [-(-int(n) // 5) * 50.0 for n in shown.step[covered]]
    assert np.isnan(shown.tokens_per_s[shown.step > 55]).all()
    assert shown.loss[single & (shown.step % 5 == 0)].tolist() == [
        float(n) for n in shown.step[single & (shown.step % 5 == 0)]
    ]
    assert np.isnan(shown.loss[single & (shown.step % 5 > 0)]).all()
    assert job.step_table().step.tolist() == [*range(5, 56, 5)]


@pytest.mark.parametrize(
    ("lines", "later_s", "stopped"), [(3, 31.0, True), (3, 29.0, False), (2, 31.0, False)]
)
def test_lines_count_again_once_operations_show_steps_no_more(
    lines: int, later_s: float, stopped: bool
) -> None:
    made, _ = played(covered=5)
    shown = snapshot(made).steps
    newest, ended_s = int(shown.step[-1]), float(shown.time_unix_s[-1])
    numbers = [65 + 5 * number for number in range(lines)]
    assert newest <= 60
    for number in numbers:
        at_s = ended_s + later_s - (numbers[-1] - number) * 0.2
        made.apply([step(number, job="job", time_s=at_s, step_time_s=0.2, steps_covered=5)], source())
    data = snapshot(made)
    assert (data.operation_pace is None) is stopped
    assert data.steps.step[-1] == (numbers[-1] if stopped else newest)


@pytest.mark.parametrize(("first_s", "known"), [(0.5, True), (60.0, False)])
def test_the_first_line_alone_is_beside_operations_once_another_step_was_due(
    first_s: float, known: bool
) -> None:
    """A log with a line of the first step, and next of the hundredth: what repeats may be a micro-batch."""
    timeline = Timeline()
    for _ in range(30):
        timeline.step([DDP])
    made = fleet()
    first = step(1001, job="job", time_s=timeline.ends_us[0] / 1e6, step_time_s=first_s)
    made.apply([first, *timeline.records()], source())

    assert within(made) is None or known
    assert (snapshot(made).operation_pace is not None) is known
    if known:
        # It was resumed at step 1000.
        assert snapshot(made).steps.step[-1] == pytest.approx(1030, abs=1)


@pytest.mark.parametrize("described", [4, None])
def test_what_a_group_hands_on_counts_the_micro_batches_that_the_job_describes(described: int | None) -> None:
    timeline = Timeline()
    for _ in range(60):
        timeline.step([[Op("Broadcast", 64 * MB, 20_000), Op("Broadcast", 8 * MB, 2_000)]] * 4, pause_us=0)
    made = fleet()
    batch = {} if described is None else {"global_batch_size": 8, "micro_batch_size": 2, "dp": 1}
    made.apply(
        [
            JobDescription(
                job="job", framework="megatron-lm", parallel=ParallelLayout(world_size=2, tp=2, **batch)
            )
        ],
        source(),
    )
    for record in timeline.records():
        made.apply([record], source())

    pace = made.jobs["job"].operation_pace
    assert pace is not None
    assert (pace.per_step, pace.doubt) == ((8, None) if described else (2, StepDoubt.MICRO_BATCHES))


def test_without_operations_there_is_nothing_within_lines() -> None:
    made = fleet()
    made.apply([step(n, job="job", step_time_s=0.1, steps_covered=5) for n in range(5, 60, 5)], source())
    data = snapshot(made)
    assert within(made) is None
    assert np.all(data.steps.steps_covered == 5)
