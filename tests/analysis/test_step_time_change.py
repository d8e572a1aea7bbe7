"""A lasting growth of step time: when it begins and ends, and what is none."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import step_table

from perfd.analysis.steps import StepTimeChange, step_time_change
from perfd.analysis.steps.longer_steps import lines_since
from perfd.model import Event, EventKind

USUAL = [9.0, *[1.0, 1.01, 0.99] * 10]


def change(*times_s: float, events: tuple[Event, ...] = ()) -> StepTimeChange | None:
    return step_time_change(step_table([*USUAL, *times_s]), events)


def changes(times_s: list[float]) -> int:
    """How often a growth begins or ends, looked at after every step."""
    found = [change(*times_s[:count]) for count in range(len(times_s) + 1)]
    grown = [one is not None and one.growth_ratio > 0 for one in found]
    return sum(before is not after for before, after in itertools.pairwise(grown))


def test_three_longer_steps_in_a_row_are_a_growth_and_two_are_none():
    assert change(1.2, 1.2).growth_ratio == 0
    assert change(1.2, 1.2, 1.2) == StepTimeChange(baseline_s=1.0, growth_ratio=pytest.approx(0.2))


YOUNG = [9.0, *[1.0, 1.01, 0.99] * 2, 1.0, 1.0]


@pytest.mark.parametrize(
    ("times_s", "growth"),
    [
        ((1.2, 1.3), 0.0),
        ((1.3,), 0.0),
        ((1.3, 1.3), 0.3),
        ((1.3, 1.3, 1.0, 1.0), 0.3),
        ((1.12, 1.12, 1.12), 0.12),
        ((1.3, 1.3, 1.0, 1.0, 1.0), 0.0),
    ],
)
def test_two_steps_longer_by_a_quarter_are_a_growth_even_of_a_young_job(
    times_s: tuple[float, ...], growth: float
):
    found = step_time_change(step_table([*YOUNG, *times_s]), ())
    assert (found.growth_ratio if found else 0.0) == pytest.approx(growth)


@pytest.mark.parametrize(
    ("before", "times_s", "growth"),
    [
        (6, (1.3,) * 3, 0.3),
        (6, (1.3,) * 2, 0.0),
        (5, (1.3,) * 3, 0.0),
        (6, (1.2,) * 3, 0.0),
        (6, (1.3,) * 6, 0.3),
    ],
)
def test_six_steps_before_do_for_three_longer_by_a_quarter(
    before: int, times_s: tuple[float, ...], growth: float
):
    found = step_time_change(step_table([9.0, *([1.0, 1.01, 0.99] * 2)[:before], *times_s]), ())
    assert (found.growth_ratio if found else 0.0) == pytest.approx(growth)


def test_a_growth_with_six_steps_before_lasts_for_eight():
    young = [9.0, *[1.0, 1.2, 0.8] * 2]
    assert step_time_change(step_table([*young, *[2.0] * 8]), ()).growth_ratio == pytest.approx(1.0)
    found = step_time_change(step_table([*young, *[2.0] * 9]), ())
    assert found.growth_ratio == pytest.approx(1.0)


def test_two_unlike_steps_are_no_growth_in_a_job_that_had_such_pauses():
    pause = [*[1.0] * 20, 2.2, *[1.0, 1.01, 0.99] * 4]
    assert change(*pause, 3.0, 2.1).growth_ratio == 0
    assert change(*pause, 3.0, 2.1, 2.2).growth_ratio == pytest.approx(1.2)
    assert change(*pause, 2.4, 2.1).growth_ratio == pytest.approx(1.25)
    assert change(*pause, 4.0, 2.3).growth_ratio == pytest.approx(2.15)
    assert change(3.0, 2.1).growth_ratio == pytest.approx(1.55)
    several = replace(step_table([*USUAL, *pause, 3.0, 2.1]), steps_covered=np.full(len(USUAL) + 35, 5))
    assert step_time_change(several, ()).growth_ratio == pytest.approx(1.55)


def test_after_a_restart_a_job_that_settles_has_no_growth():
    earlier = [9.0, 3.0, 2.5, *USUAL[1:]]
    again = Event(kind=EventKind.RESTARTED, time_unix_ns=0, message="", step=len(earlier))

    def growth(*after_s: float, events: tuple[Event, ...] = (again,)) -> float:
        return step_time_change(step_table([*earlier, 9.0, *after_s]), events).growth_ratio

    assert growth(3.0, 2.5, events=()) > 0
    settles = [3.0, 2.5, 1.4, 1.0, 1.0, 1.0, 1.0]
    assert [growth(*settles[:lines]) for lines in range(8)] == [0] * 8
    assert growth(1.4, 1.4) == pytest.approx(0.4)
    assert growth(1.7, 1.7, 1.7) == pytest.approx(0.7)


def test_two_short_steps_or_steps_as_long_by_chance_are_no_growth():
    assert step_time_change(step_table([time_s / 2 for time_s in [*YOUNG, 1.3, 1.3]]), ()) is None
    wide = [9.0, *[0.8, 1.0, 1.2] * 3]
    assert step_time_change(step_table([*wide, 2.0, 2.0]), ()) is None
    assert step_time_change(step_table([*wide, 2.4, 2.4]), ()).growth_ratio == pytest.approx(1.4)


@pytest.mark.parametrize(
    ("scatter_s", "lines", "grown"), [(0.03, 3, True), (0.07, 3, False), (0.07, 12, True)]
)
def test_the_more_steps_are_longer_the_less_they_need_to_stand_out(scatter_s: float, lines: int, grown: bool):
    noise = np.random.default_rng(8).normal(0.0, scatter_s, 60)
    scattered = [9.0, *(1.0 + noise)]
    found = step_time_change(step_table([*scattered, *[1.2] * lines]), ())
    assert (found is not None and found.growth_ratio > 0.1) is grown


def test_short_steps_need_to_be_longer_for_two_seconds_in_all():
    short = [time_s / 20 for time_s in USUAL]
    assert step_time_change(step_table([*short, *[0.06] * 33]), ()).growth_ratio == 0
    found = step_time_change(step_table([*short, *[0.06] * 34]), ())
    assert found.growth_ratio == pytest.approx(0.2, abs=0.02)
    quick = [time_s / 200 for time_s in [*USUAL, *USUAL[1:] * 9]]
    found = step_time_change(step_table([*quick, *[0.006] * 400]), ())
    assert found.growth_ratio == pytest.approx(0.2, abs=0.02)


def test_parts_of_steps_that_are_longer_within_each_step_are_no_growth_of_steps():
    """As in recordings pair111 and pair115, where 13 and 45 micro-batches are a step."""
    parts = [*[0.045] * 50, *[0.055] * 50] * 8
    ends = range(400, len(parts), 10)
    as_steps = [step_time_change(step_table(parts[:end]), ()).growth_ratio for end in ends]
    as_parts = [step_time_change(step_table(parts[:end]), (), may_be_parts=True).growth_ratio for end in ends]
    assert max(as_steps) == pytest.approx(0.22, abs=0.01)
    assert set(as_parts) == {0.0}
    lasting = step_table([*parts, *[0.065] * 50])
    assert step_time_change(lasting, (), may_be_parts=True).growth_ratio > 0.25


def test_a_line_over_five_steps_takes_as_long_as_these():
    lines = step_table([time_s / 3 for time_s in [*YOUNG, 1.3, 1.3]])
    assert step_time_change(lines, ()) is None
    of_five = replace(lines, steps_covered=np.full(len(lines), 5))
    assert step_time_change(of_five, ()).growth_ratio == pytest.approx(0.3)


def test_a_quarter_of_the_steps_since_may_be_usual():
    assert change(1.3, 1.0, 1.3, 1.3).growth_ratio == pytest.approx(0.3)
    assert change(1.3, 1.0, 1.0, 1.3, 1.3).growth_ratio == pytest.approx(0.3)
    assert change(1.3, 1.0, 1.3, 1.0, 1.3).growth_ratio == 0


def test_longer_steps_after_longer_ones_that_are_over_are_compared_with_those_between():
    found = change(*[1.5] * 20, *[1.0] * 8, *[1.12] * 3)
    assert found == StepTimeChange(baseline_s=1.0, growth_ratio=pytest.approx(0.12))


@pytest.mark.parametrize(
    ("apart", "grown"), [((5, 5), True), ((5, 6), False), ((2, 2), False), ((3, 3), True)]
)
def test_stalls_count_at_equal_intervals_of_three_steps_and_more(apart: tuple[int, int], grown: bool):
    stalls = [1.6] + [step for length in apart for step in [*[1.0] * (length - 1), 1.6]]
    assert (change(*stalls).growth_ratio > 0.1) is grown


def test_after_longer_steps_that_are_over_two_steps_are_compared_with_those_just_before():
    assert change(*[1.5] * 40, *[1.0] * 10).growth_ratio == 0
    assert change(*[1.5] * 40, *[1.0] * 10, 1.4, 1.4).growth_ratio == pytest.approx(0.4)


def test_a_step_must_be_longer_by_more_than_a_tenth():
    assert change(1.1, 1.1, 1.1).growth_ratio == 0
    assert change(1.11, 1.11, 1.11).growth_ratio == pytest.approx(0.11)


def test_it_ends_with_three_usual_steps_in_a_row():
    assert change(*[1.2] * 5, 1.0, 1.0).growth_ratio == pytest.approx(0.2)
    assert change(*[1.2] * 5, 1.0, 1.0, 1.0).growth_ratio == 0


def test_a_stall_in_every_fifth_step_is_a_growth_when_it_came_three_times():
    period = [1.6, 1.0, 1.0, 1.0, 1.0]
    assert change(*period * 2).growth_ratio == 0
    assert change(*period * 2, 1.6).growth_ratio == pytest.approx(0.12)
    assert changes(period * 12) == 1


def test_a_stall_that_stays_away_for_two_of_its_periods_is_over():
    stalls = [1.6, 1.0, 1.0, 1.0, 1.0] * 3
    assert change(*stalls, *[1.0] * 6).growth_ratio == pytest.approx(0.12)
    assert change(*stalls, *[1.0] * 7).growth_ratio == 0


@pytest.mark.parametrize("period", [5, 20])
def test_what_recurs_from_the_start_is_no_growth_and_a_stall_beside_it_is(period):
    evaluated = [1.6 if line % period == 0 else 1.0 for line in range(1, 8 * period)]
    found = [step_time_change(step_table(evaluated[:count]), ()) for count in range(len(evaluated))]
    assert [one for one in found if one is not None and one.growth_ratio] == []
    slower = [time_s + 0.3 for time_s in evaluated[:3]]
    assert step_time_change(step_table([*evaluated, *slower]), ()).growth_ratio == pytest.approx(0.3)


def test_a_stall_is_new_when_it_stayed_away_for_two_of_its_periods_before():
    stalls = [1.6, 1.0, 1.0, 1.0, 1.0] * 2 + [1.6]
    assert step_time_change(step_table([9.0, *[1.0] * 9, *stalls]), ()).growth_ratio == 0
    assert step_time_change(step_table([9.0, *[1.0] * 10, *stalls]), ()).growth_ratio == pytest.approx(0.12)


def test_a_stall_that_doubles_a_step_is_a_growth_when_it_came_twice():
    assert change(2.1, *[1.0] * 4).growth_ratio == 0
    assert change(2.1, *[1.0] * 4, 2.1).growth_ratio == pytest.approx(0.22)
    assert change(1.9, *[1.0] * 4, 1.9).growth_ratio == 0
    assert changes([2.1, *[1.0] * 4] * 12) == 1
    assert changes([2.1, *[1.0] * 4, 2.1, *[1.0] * 11]) == 2


@pytest.mark.parametrize(
    ("second_s", "apart", "grown"),
    [(2.1, 10, True), (2.1, 11, False), (2.1, 2, False), (1.6, 5, False), (2.4, 5, True), (2.6, 5, False)],
)
def test_two_stalls_are_a_growth_only_if_alike_and_few_steps_apart(second_s: float, apart: int, grown: bool):
    found = change(2.1, *[1.0] * (apart - 1), second_s)
    assert (found.growth_ratio > 0.1) is grown


def test_two_stalls_are_a_growth_only_if_they_stayed_away_for_two_of_their_periods_before():
    stalls = [2.1, 1.0, 1.0, 1.0, 1.0, 2.1]
    assert step_time_change(step_table([9.0, *[1.0] * 9, *stalls]), ()).growth_ratio == 0
    # What made steps longer by less, and is over, was no such stall.
    assert change(*[1.4] * 20, *[1.0] * 3, *stalls).growth_ratio == pytest.approx(0.22, abs=0.02)


def test_three_stalls_of_which_one_adds_less_than_half_of_another_are_no_growth():
    assert change(1.8, *[1.0] * 4, 1.8, *[1.0] * 4, 1.5).growth_ratio > 0.1
    assert change(1.8, *[1.0] * 4, 1.8, *[1.0] * 4, 1.35).growth_ratio == 0


def test_two_stalls_are_no_growth_in_a_job_that_had_many_such_steps_before():
    stalls = [2.1, 1.0, 1.0, 1.0, 1.0, 2.1]
    one = [*[1.0] * 30, 2.1, *[1.0] * 30]
    assert change(*one, *stalls).growth_ratio == 0
    assert change(*one, *[1.0] * 410, *stalls).growth_ratio == pytest.approx(0.22)
    assert change(*[1.0] * 30, *[2.1] * 12, *[1.0] * 60, *stalls).growth_ratio == pytest.approx(0.22)


def test_two_stalls_of_short_steps_need_to_take_two_seconds_with_the_steps_between():
    short = [time_s / 20 for time_s in USUAL]
    assert step_time_change(step_table([*short, 0.9, *[0.05] * 3, 0.9]), ()).growth_ratio == 0
    found = step_time_change(step_table([*short, 0.95, *[0.05] * 3, 0.95]), ())
    assert found.growth_ratio > 1


def test_stalls_do_not_widen_the_scatter_that_they_are_compared_with():
    rng = np.random.default_rng(4)
    young = [9.0, *(1.3 + rng.normal(0.0, 0.1, 10))]
    stalls = [2.0, *(1.3 + rng.normal(0.0, 0.1, 4))] * 2
    assert step_time_change(step_table([*young, *stalls, 2.0, 1.3]), ()).growth_ratio > 0.1


def test_a_growth_of_unsteady_steps_begins_once_and_ends_once():
    assert changes([*[1.3, 1.05, 1.3, 1.3, 1.3] * 8, *[1.0] * 5]) == 2


def test_a_job_whose_steps_scatter_widely_needs_more_than_a_tenth():
    wide = [9.0, *[0.8, 1.0, 1.2] * 10]
    assert step_time_change(step_table([*wide, 1.3, 1.3, 1.3]), ()).growth_ratio == 0
    assert step_time_change(step_table([*wide, 2.5, 2.5, 2.5]), ()).growth_ratio == pytest.approx(1.5)


def test_what_lasts_for_most_of_the_job_is_its_usual_pace():
    assert change(*[1.2] * 30).growth_ratio == pytest.approx(0.2, abs=0.02)
    assert change(*[1.2] * 100).growth_ratio == 0


def test_steps_that_hold_a_checkpoint_are_no_growth():
    first = len(USUAL) + 1
    saved = tuple(
        Event(kind=EventKind.CHECKPOINT, time_unix_ns=0, message="", step=step)
        for step in range(first, first + 3)
    )
    assert change(3.0, 3.0, 3.0).growth_ratio == pytest.approx(2.0)
    assert change(3.0, 3.0, 3.0, events=saved).growth_ratio == 0


def test_nothing_is_said_of_fewer_than_thirteen_steps():
    assert step_time_change(step_table([9.0, *[1.0] * 12]), ()) is None
    assert step_time_change(step_table([9.0, *[1.0] * 13]), ()).growth_ratio == 0
    assert step_time_change(step_table([]), ()) is None
    assert step_time_change(step_table([np.nan] * 30), ()) is None


@pytest.mark.parametrize(("as_before", "since"), [(1, 10), (2, None)])
def test_steps_are_longer_since_a_line_if_nearly_all_after_it_are(as_before: int, since: int | None) -> None:
    longer = [1.3] * 10
    longer[3 : 3 + as_before] = [1.0] * as_before

    assert lines_since(np.array([1.0, 1.01] * 4 + longer)) == since
