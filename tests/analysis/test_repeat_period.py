"""After how many operations a sequence of sizes repeats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.analysis.operations.repeat_period import FEWEST_REPEATS, Repeat, repeat_period

patterns = st.lists(st.integers(1, 4), min_size=1, max_size=12)


def test_a_pattern_is_found_once_it_was_there_three_times():
    pattern = [5, 1, 1, 2]
    assert repeat_period(np.array(pattern * 2)) is None
    assert repeat_period(np.array(pattern * 3)) == Repeat(4, 12)


def test_what_came_before_the_pattern_does_not_count():
    assert repeat_period(np.array([9, 8, 7, *[5, 1, 1, 2] * 4])) == Repeat(4, 16)


def test_a_run_of_equal_sizes_inside_a_step_is_no_step():
    assert repeat_period(np.array([9, *[1] * 16, 9, *[1] * 16])) is None
    assert repeat_period(np.array([9, *[1] * 16] * 3)) == Repeat(17, 51)


@pytest.mark.parametrize("sizes", [[], [1], [1, 2], [1, 2, 3, 4, 5, 6]])
def test_without_a_repeat_there_is_none(sizes):
    assert repeat_period(np.array(sizes)) is None


@given(patterns, st.integers(FEWEST_REPEATS, 6), st.integers(0, 11))
def test_any_cut_of_a_repeated_pattern_has_a_period_that_divides_it(pattern, repeats, cut):
    sizes = (pattern * (repeats + 1))[cut % len(pattern) :]
    found = repeat_period(np.array(sizes))
    assert found is not None
    assert sizes[-found.length + found.period :] == sizes[-found.length : -found.period]
    assert found.length >= FEWEST_REPEATS * found.period


@given(st.lists(st.integers(0, 3), max_size=80))
def test_what_is_found_does_repeat(sizes):
    found = repeat_period(np.array(sizes))
    if found is not None:
        newest = sizes[len(sizes) - found.length :]
        assert newest[found.period :] == newest[: -found.period]


@given(
    st.lists(st.integers(0, 2), max_size=40)
    | st.tuples(st.lists(st.integers(0, 2), max_size=6), patterns, st.integers(1, 9)).map(
        lambda parts: parts[0] + parts[1] * parts[2]
    )
)
def test_it_is_the_longest_stretch_of_newest_sizes_with_three_repeats_and_its_shortest_period(sizes):
    expected = None
    for length in range(1, len(sizes) + 1):
        newest = sizes[-length:]
        period = next(one for one in range(1, length + 1) if newest[one:] == newest[: length - one])
        if length >= FEWEST_REPEATS * period and length >= len(sizes) / 2:
            expected = Repeat(period, length)
    assert repeat_period(np.array(sizes)) == expected
