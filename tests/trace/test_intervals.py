"""Unions of intervals against counting every unit of time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfd.trace.model.intervals import Coverage

_TIMES = st.integers(min_value=-20, max_value=40)
_INTERVALS = st.lists(st.tuples(_TIMES, _TIMES), max_size=12)


def _coverage(intervals: list[tuple[int, int]]) -> Coverage:
    table = np.array(intervals, dtype=np.int64).reshape(-1, 2)
    return Coverage(table[:, 0], table[:, 1])


def _units(intervals: list[tuple[int, int]]) -> set[int]:
    return {unit for start, end in intervals for unit in range(start, end)}


@given(_INTERVALS, _TIMES, _TIMES)
def test_what_is_covered_is_what_counting_finds(intervals, start, end):
    units = _units(intervals)

    assert _coverage(intervals).covered_ns(start, end) == len(units & set(range(start, end)))
    assert _coverage(intervals).total_ns == len(units)


@given(_INTERVALS, _INTERVALS)
def test_a_union_covers_what_any_part_does(first, second):
    both = Coverage.union(_coverage(first), _coverage(second))

    assert both.total_ns == len(_units(first) | _units(second))


@given(_INTERVALS, _TIMES, _TIMES)
def test_gaps_are_what_the_union_leaves_open_and_do_not_touch(intervals, start, end):
    starts, ends = _coverage(intervals).gaps(start, end)

    gaps = list(zip(starts.tolist(), ends.tolist(), strict=True))
    assert _units(gaps) == set(range(start, end)) - _units(intervals)
    assert all(before[1] < after[0] for before, after in pairwise(gaps))


def test_no_interval_covers_nothing():
    nothing = Coverage.union()

    assert nothing.total_ns == 0
    assert nothing.covered_ns(0, 10) == 0
    assert nothing.gaps(0, 10)[0].tolist() == [0]
