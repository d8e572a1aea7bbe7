"""Stalls at regular intervals: their period, rank and cost, and no period where there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import job_data, step_table
from hypothesis import given
from hypothesis import strategies as st

from perfd.analysis.data.job_data import OperationPace
from perfd.analysis.diagnosis import AnalysisSettings, summarise
from perfd.analysis.findings import Kind
from perfd.analysis.steps import steady_rows
from perfd.analysis.stragglers import PeriodicStall, periodic_stall
from perfd.model import ParallelLayout
from tests.support.nccl_records import CollectiveTable, stacks_of

LAYOUT = ParallelLayout(world_size=4, tp=1, pp=1, dp=4)


def steps_with_stalls(count: int, every: int, stall_s: float, *, seed: int = 1) -> list[float]:
    """Half a second a step, with a scatter of 1%."""
    noise = np.random.default_rng(seed).normal(0.5, 0.005, count)
    return [time_s + (stall_s if number % every == every - 1 else 0.0) for number, time_s in enumerate(noise)]


def found(times_s: list[float], collectives: list[CollectiveTable] | None = None) -> PeriodicStall | None:
    steps = step_table(times_s)
    return periodic_stall(steps, steady_rows(steps, ()).unmarked, stacks_of(collectives or []), LAYOUT)


def all_reduces(count: int, every: int, stall_s: float, ranks: list[int]) -> CollectiveTable:
    """One all-reduce per step; in every so many steps the others wait for one of `ranks` in turn."""
    durations = np.full((count, 4), 0.01)
    for turn, step in enumerate(range(every - 1, count, every)):
        others = [rank for rank in range(4) if rank != ranks[turn % len(ranks)]]
        durations[step, others] += stall_s
    return CollectiveTable(
        communicator="ab",
        operation="AllReduce",
        ranks=range(4),
        sequence=np.arange(count),
        durations_s=durations,
        size_bytes=np.full(count, 1e6),
        kernel_ratio=np.full(4, 0.02),
    )


def test_one_rank_that_stalls_every_fifth_step_is_named_with_period_and_cost() -> None:
    stall = found(steps_with_stalls(40, 5, 0.6), [all_reduces(40, 5, 0.6, [2])])

    assert stall is not None
    assert (stall.period_steps, stall.rank) == (5, 2)
    assert stall.stall_s == pytest.approx(0.6, abs=0.02)
    assert stall.period_s == pytest.approx(5 * 0.5 + 0.6, abs=0.05)
    assert stall.cost_ratio == pytest.approx(0.6 / 3.1, abs=0.02)
    assert stall.usual_s == pytest.approx(0.5, abs=0.01)


def test_stalls_in_steps_between_two_lines_of_a_log_are_seen_by_operations() -> None:
    steps = step_table(steps_with_stalls(60, 5, 0.6))
    times_s = steps.step_time_s.reshape(12, 5).mean(axis=1)
    lines = replace(
        step_table(times_s.tolist()),
        step=steps.step[4::5],
        time_unix_s=steps.time_unix_s[4::5],
        steps_covered=np.full(12, 5),
    )
    pace = OperationPace(
        communicator="ab", operation="AllReduce", per_step=5, row_end_sequence=300, doubt=None, exact=True
    )
    by_lines = job_data(lines)
    known = replace(by_lines, steps=steps, operation_pace=pace)

    assert summarise(by_lines, AnalysisSettings()).bottleneck.kind is not Kind.PERIODIC_STALL
    stall = summarise(known, AnalysisSettings()).bottleneck
    assert stall.kind is Kind.PERIODIC_STALL
    assert stall.evidence[0].startswith(
        "Every 5 steps, which is every 3096.5 ms, a step takes 600.9 ms longer"
    )
    assert stall.evidence[0].endswith("(NCCL operations).")


@pytest.mark.parametrize("odd", [[3], [3, 57], [11, 23, 47]])
def test_steps_that_are_longer_by_little_hide_no_period_of_stalls_that_cost_far_more(odd: list[int]) -> None:
    times_s = steps_with_stalls(60, 10, 3.0)
    for step in odd:
        times_s[step] += 0.08
    stall = found(times_s)

    assert stall is not None
    assert stall.period_steps == 10
    assert stall.cost_ratio == pytest.approx(18 / 48, abs=0.02)


def test_who_others_waited_for_in_an_earlier_fault_is_not_who_stalls_now() -> None:
    """All ranks stall every five steps, after rank 2 was late in ten of 40 steps."""
    per_s = 60 / sum(steps_with_stalls(60, 5, 0.6))
    operations = replace(all_reduces(100, 4, 0.6, [2]), operations_per_s=per_s)
    operations.durations_s[40:] = 0.01
    later = [0.5] * 40 + steps_with_stalls(60, 5, 0.6)
    stall = found(later, [operations])

    assert stall is not None
    assert (stall.period_steps, stall.rank) == (5, None)
    assert found(later, [replace(operations, operations_per_s=None)]) is not None
    now = replace(all_reduces(100, 5, 0.6, [2]), operations_per_s=per_s)
    assert (found(later, [now]) or stall).rank == 2


def test_it_is_known_within_three_periods() -> None:
    times = steps_with_stalls(40, 5, 0.6)
    known = [count for count in range(1, 41) if found(times[:count]) is not None]

    # The first line is no steady one; stalls are steps 5, 10, 15 and 20.
    assert known[0] == 20


def test_where_ranks_stall_in_turn_none_is_named() -> None:
    stall = found(steps_with_stalls(40, 5, 0.6), [all_reduces(40, 5, 0.6, [0, 1, 2, 3])])

    assert stall is not None
    assert stall.rank is None


def test_a_period_in_seconds_is_found_where_steps_vary() -> None:
    """Every 10 s something takes a second, while steps of 0.3 and 0.4 s make it 24 to 32 of them."""
    rng = np.random.default_rng(3)
    times: list[float] = []
    next_s, now_s = 10.0, 0.0
    while now_s < 60:
        time_s = float(rng.uniform(0.28, 0.42))
        if now_s + time_s >= next_s:
            time_s += 3.0
            next_s += 10.0
        times.append(time_s)
        now_s += time_s

    stall = found(times)

    assert stall is not None
    assert stall.period_s == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize(
    "times",
    [
        [0.5, 0.9] * 20,
        steps_with_stalls(40, 5, 0.01),
        [0.5] * 20 + [0.8] * 20,
        [0.5, 0.5],
        [],
        [float("nan")] * 40,
    ],
    ids=["alternating", "small", "another pace", "two steps", "none", "unknown"],
)
def test_other_patterns_are_no_stalls(times: list[float]) -> None:
    assert found(times) is None


def test_a_burst_of_long_steps_is_no_period() -> None:
    times = [0.5] * 21
    for place in (12, 14, 16, 18):
        times[place] = 1.1

    assert found(times) is None


def test_stalls_that_ended_are_over_after_two_periods() -> None:
    stalls = steps_with_stalls(40, 5, 0.6)
    # The last stall is step 40, and a period is 3.1 s: 12 steps of half a second are within two of them.
    assert found(stalls + [0.5] * 12) is not None
    assert found(stalls + [0.5] * 13) is None


def test_lines_of_several_steps_show_no_single_one() -> None:
    steps = step_table(steps_with_stalls(40, 5, 0.6), steps_covered=10)

    assert periodic_stall(steps, steady_rows(steps, ()).unmarked, [], LAYOUT) is None


@given(places=st.sets(st.integers(1, 99), min_size=4, max_size=20))
def test_irregular_stalls_have_no_period_in_steps(places: set[int]) -> None:
    times = [0.5 + (0.6 if place in places else 0.0) for place in range(100)]
    apart = np.diff(sorted(places))

    stall = found(times)

    if stall is not None and stall.period_steps is not None:
        assert (apart % stall.period_steps == 0).mean() >= 0.7


def test_stalls_show_beside_longer_steps_that_another_fault_made_before() -> None:
    usual = steps_with_stalls(60, 1000, 0.0)
    another = [1.4 * time_s for time_s in steps_with_stalls(30, 1000, 0.0, seed=2)]
    stall = found([*usual, *another, *usual[:20], *steps_with_stalls(25, 5, 0.6)])

    assert stall is not None
    assert (stall.period_steps, stall.stalls) == (5, 5)
    assert stall.cost_ratio == pytest.approx(0.6 / 3.1, abs=0.03)


def test_a_few_stalls_of_almost_one_period_are_no_period() -> None:
    times = np.full(60, 0.5)
    times[[-21, -16, -10, -5]] = 1.1
    times[5:25] = 0.8
    assert found(times.tolist()) is None


@pytest.mark.parametrize(("scatter_s", "is_one"), [(0.01, True), (0.015, False)])
def test_a_stall_stands_out_of_the_scatter_of_steps(scatter_s: float, is_one: bool) -> None:
    """By up to 5.1 of its robust standard deviations, or 3.4."""
    times = [0.5 + scatter_s * (-1) ** step + (0.15 if step % 5 == 4 else 0.0) for step in range(100)]

    assert (found(times) is not None) is is_one


@pytest.mark.parametrize(("jitter", "is_period"), [(0.07, True), (0.14, False)])
def test_intervals_in_seconds_are_alike_within_a_tenth(jitter: float, is_period: bool) -> None:
    rng = np.random.default_rng(3)
    times: list[float] = []
    next_s = now_s = 0.0
    due = 0
    while len(times) < 190:
        time_s = float(rng.uniform(0.008, 0.012))
        if now_s >= next_s:
            time_s += 0.1
            next_s = now_s + 0.3 * (1 + jitter * (0, 1, -1)[due % 3])
            due += 1
        times.append(time_s)
        now_s += time_s

    stall = found(times)

    assert (stall is not None and stall.period_steps is None) is is_period


@pytest.mark.parametrize("every", [8, 20])
def test_lines_of_several_steps_show_stalls_by_their_period(every: int) -> None:
    steps = step_table([0.5 + (3.0 / 4 if line % (every // 4) == 1 else 0.0) for line in range(60)])
    lines = replace(steps, step=4 * (np.arange(60) + 1), steps_covered=np.full(60, 4))
    stall = periodic_stall(lines, np.arange(60), [], LAYOUT)

    if every < 3 * 4:
        assert stall is None, "every second line is longer: layouts may alternate"
        return
    assert stall is not None
    assert (stall.period_steps, stall.stalls) == (every, 12)
    assert stall.stall_s == pytest.approx(3.0, abs=0.01)
    assert stall.cost_ratio == pytest.approx(3.0 / (20 * 0.5 + 3.0), abs=0.01)


def test_lines_that_cover_different_numbers_of_steps_show_no_period() -> None:
    steps = step_table([0.5 + (1.0 if line % 5 == 1 else 0.0) for line in range(60)])
    covered = np.where(np.arange(60) < 30, 4, 2)

    assert periodic_stall(replace(steps, steps_covered=covered), np.arange(60), [], LAYOUT) is None


def test_an_evaluation_long_after_the_last_stall_does_not_begin_them_anew() -> None:
    stalls, quiet_steps = steps_with_stalls(60, 5, 0.6), 90
    after = [*stalls, *steps_with_stalls(quiet_steps - 1, quiet_steps, 0.0)]
    assert found([*stalls, *after[60:64]]) is not None
    assert found([*after, 1.4, 0.5]) is None
