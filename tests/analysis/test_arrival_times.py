"""Step times of lines that say none, by when a reader saw them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from analysis.jobs import step_table
from hypothesis import given
from hypothesis import strategies as st

from perfd.analysis.data.job_data import StepTable
from perfd.analysis.steps import steady_rows, timed_by_arrival


def read_lines(
    printed_s: list[float], read_every_s: float, *, first_step: int = 1, stride: int = 1
) -> StepTable:
    """Lines that say only their step, printed at these times and read at multiples of an interval."""
    seen_s = [
        math.ceil(round(at / read_every_s, 6)) * read_every_s if read_every_s else at for at in printed_s
    ]
    steps = [first_step + stride * line for line in range(len(printed_s))]
    return step_table([math.nan] * len(printed_s), step=steps, time_unix_s=np.array(seen_s) + 1000.0)


def evenly(step_s: float, lines: int) -> list[float]:
    return [step_s * line for line in range(1, lines + 1)]


def median_s(steps: StepTable) -> float:
    return float(np.median(steps.step_time_s[steady_rows(steps, ()).rows]))


@given(
    step_s=st.floats(0.02, 5.0),
    read_every_s=st.sampled_from([0.1, 0.5, 1.0, 2.0]),
    lines=st.sampled_from([300, 700]),
)
def test_the_median_is_within_two_percent_however_often_the_log_is_read(step_s, read_every_s, lines):
    steps = timed_by_arrival(read_lines(evenly(step_s, lines), read_every_s))
    if step_s * lines > 100 * read_every_s:
        assert median_s(steps) == pytest.approx(step_s, rel=0.02)


@given(
    gaps_s=st.lists(st.floats(0.01, 3.0), min_size=2, max_size=300),
    read_every_s=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_the_times_of_all_stretches_add_up_to_the_time_between_their_lines(gaps_s, read_every_s):
    before = read_lines(list(np.cumsum(gaps_s)), read_every_s)
    steps = timed_by_arrival(before)
    closing = np.flatnonzero(np.isfinite(steps.step_time_s))
    assert (steps.step_time_s[closing] > 0).all()
    if len(closing):
        total_s = (steps.step_time_s * steps.steps_covered)[closing].sum()
        covered = steps.steps_covered[closing].sum()
        first = int(closing[-1] - covered)
        assert total_s == pytest.approx(steps.time_unix_s[closing[-1]] - steps.time_unix_s[first])
    assert steps.steps_covered.sum() == before.steps_covered.sum()


def test_lines_whose_times_are_exact_have_a_time_each():
    steps = timed_by_arrival(read_lines(evenly(0.3, 20), 0.0))
    assert np.isfinite(steps.step_time_s[1:]).all()
    assert steps.step_time_s[1:] == pytest.approx(0.3)
    assert (steps.steps_covered == 1).all()


def test_a_line_every_hundred_steps_gives_the_time_of_one():
    steps = timed_by_arrival(read_lines(evenly(20.0, 12), 1.0, first_step=100, stride=100))
    assert median_s(steps) == pytest.approx(0.2)
    assert steps.steps_covered[-1] == 100


def test_what_was_printed_before_the_first_read_has_no_time():
    late = read_lines([30.0] * 50 + [30.0 + 0.5 * line for line in range(1, 200)], 1.0)
    steps = timed_by_arrival(late)
    assert not np.isfinite(steps.step_time_s[:50]).any()
    assert median_s(steps) == pytest.approx(0.5, rel=0.02)


def test_an_evaluation_is_an_outlier_and_no_step_time():
    printed_s = evenly(0.5, 200) + [100.0 + 40.0 + at for at in evenly(0.5, 200)]
    steps = timed_by_arrival(read_lines(printed_s, 1.0))
    assert median_s(steps) == pytest.approx(0.5, rel=0.02)


def test_with_exact_times_each_line_has_its_own_though_others_hold_an_evaluation():
    printed_s = np.cumsum([0.96 if line % 5 else 1.85 for line in range(1, 30)])
    every = timed_by_arrival(read_lines(list(printed_s), 0.0, stride=5), exact=True)
    assert np.isfinite(every.step_time_s[1:]).all()
    assert median_s(every) == pytest.approx(0.192)
    unsure = timed_by_arrival(read_lines(list(printed_s), 0.0, stride=5))
    assert np.isfinite(unsure.step_time_s).sum() <= 2, "lines that were read late look the same"


def test_lines_that_came_together_share_a_time_however_exact_that_is():
    flushed = read_lines([30.0] * 50 + [60.0] * 50 + [90.0] * 50, 0.0)
    steps = timed_by_arrival(flushed, exact=True)
    assert steps.step_time_s[[99, 149]] == pytest.approx([0.6, 0.6])
    assert np.isfinite(steps.step_time_s).sum() == 2


def test_lines_that_say_a_time_keep_theirs():
    steps = step_table([math.nan, 0.7, 0.7])
    assert timed_by_arrival(steps) is steps


@pytest.mark.parametrize("printed_s", [[], [1.0], [1.0, 1.0, 1.0], [3.0, 2.0, 1.0]])
def test_too_few_lines_or_a_clock_that_steps_back_give_none(printed_s):
    steps = timed_by_arrival(read_lines(printed_s, 0.0))
    assert not np.isfinite(steps.step_time_s).any()


@pytest.mark.parametrize("jump_s", [-3600.0, -0.25, 3600.0])
def test_a_clock_that_jumps_once_costs_the_time_of_one_line(jump_s):
    printed_s = np.array(evenly(0.2, 70))
    printed_s[40:] += jump_s
    steps = timed_by_arrival(read_lines(list(printed_s), 0.0))
    assert np.isfinite(steps.step_time_s).sum() == (68 if jump_s < 0 else 69)
    assert median_s(steps) == pytest.approx(0.2)
    assert not (steps.step_time_s <= 0).any()


def test_lines_of_two_clocks_have_no_times():
    printed_s = np.array(evenly(0.2, 300))
    printed_s[::3] += 5.0
    assert not np.isfinite(timed_by_arrival(read_lines(list(printed_s), 0.0)).step_time_s).any()
