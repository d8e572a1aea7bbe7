"""Which steps are steady, and the reason of each that is not."""

from __future__ import annotations

import numpy as np
import pytest
from analysis.jobs import step_table
from hypothesis import given
from hypothesis import strategies as st

from perfd.analysis.steps.steady_steps import ExclusionReason, steady_rows
from perfd.model import Event, EventKind


def event(kind: EventKind, *, step: int | None = None, time_unix_s: float = 0.0) -> Event:
    return Event(kind=kind, time_unix_ns=int(time_unix_s * 1e9), message="", step=step)


def test_the_first_line_and_marked_warm_up_do_not_count():
    steps = step_table([9.0, 5.0, 1.0, 1.0, 1.0], warmup=[True, True, False, False, False])
    steady = steady_rows(steps, ())
    assert steady.rows.tolist() == [2, 3, 4]
    assert steady.dropped == {ExclusionReason.FIRST: (1,), ExclusionReason.WARM_UP: (2,)}


def test_a_checkpoint_an_evaluation_and_a_profile_cost_their_step_and_the_next():
    steps = step_table([1.0] * 12)
    events = [
        event(EventKind.CHECKPOINT, step=3),
        event(EventKind.EVALUATION, step=6),
        event(EventKind.PROFILE, step=9),
    ]
    dropped = steady_rows(steps, events).dropped
    assert dropped[ExclusionReason.CHECKPOINT] == (3, 4)
    assert dropped[ExclusionReason.EVALUATION] == (6, 7)
    assert dropped[ExclusionReason.PROFILE] == (9, 10)


def test_an_event_inside_a_line_of_many_steps_drops_that_line():
    steps = step_table([1.0] * 4, step=[10, 20, 30, 40], steps_covered=10)
    dropped = steady_rows(steps, [event(EventKind.CHECKPOINT, step=15)]).dropped
    assert dropped[ExclusionReason.CHECKPOINT] == (20, 30)


def test_an_event_without_a_step_is_placed_by_its_time():
    steps = step_table([1.0] * 6)
    steady = steady_rows(steps, [event(EventKind.CHECKPOINT, time_unix_s=1002.5)])
    assert steady.dropped[ExclusionReason.CHECKPOINT] == (3, 4)


def test_the_first_line_after_a_resume_does_not_count():
    steps = step_table([1.0] * 6)
    steady = steady_rows(steps, [event(EventKind.RESTARTED, step=3)])
    assert steady.dropped[ExclusionReason.FIRST] == (1, 4)


def test_a_line_without_a_time_is_not_steady():
    steady = steady_rows(step_table([1.0, 1.0, float("nan"), 0.0, 1.0]), ())
    assert steady.dropped[ExclusionReason.NO_TIME] == (3, 4)


def test_unmarked_slow_steps_are_outliers_and_stay_in_what_jitter_is_measured_on():
    times = [1.0] * 20
    times[7:11] = [1.15, 1.08, 1.16, 6.0]
    steady = steady_rows(step_table(times), ())
    # The second of them is under 10%, but stands between two that are not.
    assert steady.dropped[ExclusionReason.OUTLIER] == (8, 9, 10, 11)
    assert set(steady.unmarked.tolist()) - set(steady.rows.tolist()) == {7, 8, 9, 10}


def test_a_lasting_change_of_pace_is_no_outlier():
    steady = steady_rows(step_table([1.0] * 30 + [1.5] * 30), ())
    assert ExclusionReason.OUTLIER not in steady.dropped


def test_the_first_lines_of_a_job_that_settles_do_not_count():
    first = [9.0, 0.8, 2.9, 2.9, 2.2, 0.5, 2.2]
    steady = steady_rows(step_table([*first, 0.5, 0.51, 0.5]), ())
    assert steady.rows.tolist() == [7, 8, 9]
    assert steady.dropped[ExclusionReason.WARM_UP] == (2, 3, 4, 5, 6, 7)
    alternating = [9.0, *[0.5, 2.2] * 10, 0.5, 0.5, 0.5]
    assert ExclusionReason.WARM_UP not in steady_rows(step_table(alternating), ()).dropped


@pytest.mark.parametrize(("slow", "count"), [(10, 10), (11, 0)])
def test_what_lasts_for_more_than_ten_lines_was_the_pace_of_the_job(slow: int, count: int):
    steady = steady_rows(step_table([9.0, *[1.6] * slow, *[1.0] * 12]), ())
    assert len(steady.dropped.get(ExclusionReason.WARM_UP, ())) == count


@pytest.mark.parametrize(("slow_s", "count"), [(1.49, 0), (1.51, 5)])
def test_lines_that_settle_take_at_least_half_as_long_again(slow_s: float, count: int):
    steady = steady_rows(step_table([9.0, *[slow_s] * 5, *[1.0] * 12]), ())
    assert len(steady.dropped.get(ExclusionReason.WARM_UP, ())) == count


def test_a_fault_does_not_end_the_warm_up_later():
    settled = [9.0, 11.5, 5.5, 4.4, *[2.4, 2.5, 2.3] * 2]
    for slow in range(6):
        dropped = steady_rows(step_table([*settled, *[3.8] * slow]), ()).dropped
        assert dropped[ExclusionReason.WARM_UP] == (2, 3, 4)


def restarted(after_s: list[float], *, first: tuple[float, ...] = (3.0, 2.0)) -> tuple[int, ...]:
    """Which lines after a restart, counted from 1, settle; `first` are those that did after the start."""
    before = [9.0, *first, *[1.0, 1.01, 0.99] * 4]
    dropped = steady_rows(
        step_table([*before, *after_s]), [event(EventKind.RESTARTED, step=len(before))]
    ).dropped
    return tuple(
        step - len(before) for step in dropped.get(ExclusionReason.WARM_UP, ()) if step > len(before)
    )


def test_a_job_settles_again_after_a_restart():
    assert restarted([9.0, 3.0]) == (2,)
    assert restarted([9.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0]) == (2, 3)
    assert restarted([9.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.7, 1.7]) == (2,)
    assert restarted([9.0, *[1.4] * 8]) == ()


def test_steps_that_stay_longer_after_a_restart_count_once_they_are_more_than_at_the_first_start():
    assert restarted([9.0, 1.7, 1.7]) == (2, 3)
    assert restarted([9.0, 1.7, 1.7, 1.7]) == ()
    assert restarted([9.0, 1.7], first=()) == ()


def test_a_start_that_is_reported_late_leaves_the_warm_up_one():
    steps = step_table([9.0, 6.0, 5.5, 5.0, 4.4, 4.0, *[1.0] * 6])
    dropped = steady_rows(steps, [event(EventKind.JOB_STARTED, step=4)]).dropped
    assert dropped[ExclusionReason.FIRST] == (1, 5)
    assert dropped[ExclusionReason.WARM_UP] == (2, 3, 4, 6)


def test_wide_natural_scatter_is_not_cut():
    # Sequence lengths that vary make steps vary by a quarter: that is how this job runs.
    rng = np.random.default_rng(7)
    steady = steady_rows(step_table(rng.uniform(0.75, 1.25, 200)), ())
    assert len(steady.rows) > 195


def test_a_ramp_of_the_batch_keeps_the_newest_size_only():
    steps = step_table([1.0] * 6 + [2.0] * 6, global_batch_size=[8.0] * 6 + [16.0] * 6)
    steady = steady_rows(steps, ())
    assert steady.dropped[ExclusionReason.BATCH_SIZE] == (2, 3, 4, 5, 6)
    assert steady.rows.tolist() == [6, 7, 8, 9, 10, 11]


def test_a_window_keeps_the_newest_steady_steps():
    assert steady_rows(step_table([1.0] * 100), (), window=10).rows.tolist() == list(range(90, 100))


def test_no_steps_are_no_steady_steps():
    steady = steady_rows(step_table([]), [event(EventKind.CHECKPOINT, step=1)])
    assert len(steady.rows) == 0
    assert steady.dropped == {}


@given(st.lists(st.one_of(st.floats(0.1, 10), st.just(float("nan"))), max_size=60))
def test_each_step_is_either_steady_or_dropped_for_one_reason(times: list[float]):
    steady = steady_rows(step_table(times), ())
    dropped = [step for steps in steady.dropped.values() for step in steps]
    assert sorted([*dropped, *(steady.rows + 1).tolist()]) == list(range(1, len(times) + 1))


def test_where_steps_scatter_an_outlier_is_farther_off():
    """Four robust standard deviations of these are about 12%."""
    times = [1.0 + 0.02 * (step % 5 - 2) for step in range(60)]
    times[20], times[40] = 1.11, 1.19

    assert steady_rows(step_table(times), ()).dropped[ExclusionReason.OUTLIER] == (41,)
