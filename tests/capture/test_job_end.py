"""A capture begins only when it is over before its job is."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.capture.expected_job_end import (
    FOR_HANGS,
    MARGIN_S,
    ExitOptions,
    Pace,
    ends_now,
    exit_options,
    exit_unix_s,
    is_planned,
    job_end,
    limit_unix_s,
    needed_s,
    too_late,
    window_s,
    writing_s,
)
from perfd.model import CaptureTool, RankPlacement

NOW = 1_700_000_000.0
PACE = Pace(step=54, stepped_unix_s=NOW, train_steps=60, step_time_s=1.5)


def changed(**changes):
    fields = {name: getattr(PACE, name) for name in PACE.__slots__}
    return Pace(**{**fields, **changes})


def test_the_refusal_names_the_figures():
    reason = too_late(job_end(PACE, NOW), CaptureTool.KINETO, 21.0)
    assert reason == ("The job ends in about 9 s (6 of 60 steps left at 1.5 s); a kineto capture needs 21 s.")


def test_what_passed_since_the_last_line_is_no_time_that_is_left():
    assert job_end(PACE, NOW + 4.0).in_s == 5.0
    assert job_end(PACE, NOW + 99.0).in_s == 0.0
    assert job_end(PACE, NOW - 99.0).in_s == 9.0, "a log's clock that is ahead gives no time away"


@pytest.mark.parametrize("missing", ["step", "train_steps", "step_time_s"])
def test_without_the_log_the_end_is_unknown_and_holds_nothing_back(missing):
    pace = changed(**{missing: None})
    assert job_end(pace, NOW) is None
    assert not is_planned(pace)
    assert too_late(None, CaptureTool.KINETO, 1e9) == ""


def test_steps_beyond_the_last_one_are_the_end():
    assert job_end(changed(step=61), NOW).in_s == 0.0


def test_the_nearer_of_both_ends_counts():
    limit = changed(limit_unix_s=NOW + 5.0)
    assert (job_end(limit, NOW).in_s, job_end(limit, NOW).why) == (5.0, "SLURM's time limit")
    assert job_end(changed(limit_unix_s=NOW + 50.0), NOW).why == "6 of 60 steps left at 1.5 s"


def test_a_time_limit_alone_does_not_say_when_the_job_ends_by_itself():
    pace = Pace(limit_unix_s=NOW + 50.0)
    assert job_end(pace, NOW).in_s == 50.0
    assert not is_planned(pace)


def test_a_time_limit_that_has_passed_was_extended():
    assert job_end(Pace(limit_unix_s=NOW), NOW) is None


@pytest.mark.parametrize(
    ("step", "interval", "train_steps", "left"),
    [
        (54, 20, 60, 6),
        (54, 55, 60, 1),
        (54, 55, None, 1),
        (56, 55, None, 54),
        (55, 55, None, 0),
        (0, 55, None, 55),
    ],
)
def test_a_job_that_exits_at_an_interval_ends_there(step, interval, train_steps, left):
    pace = changed(step=step, exit_interval_steps=interval, train_steps=train_steps)
    assert job_end(pace, NOW).in_s == left * 1.5
    assert is_planned(pace)


def test_a_job_with_a_duration_of_its_own_ends_when_it_is_over():
    options = exit_options({"exit_duration_in_mins": "2", "exit_interval": "None"})
    ranks = [
        RankPlacement(job="llm", rank=rank, started_unix_ns=int((NOW - 100 + rank) * 1e9)) for rank in (0, 1)
    ]
    pace = changed(exit_unix_s=exit_unix_s(options, ranks), train_steps=None)
    assert job_end(pace, NOW).in_s == 20.0, "since the first process started"
    assert job_end(pace, NOW).why == "the job's own time limit"
    assert job_end(pace, NOW + 30.0).in_s == 0.0, "it goes on only to the end of its step"
    assert is_planned(pace)
    assert exit_unix_s(options, [RankPlacement(job="llm", rank=0)]) is None
    assert exit_unix_s(ExitOptions(), ranks) is None


@pytest.mark.parametrize("text", ["None", "0", "", "soon", "-5"])
def test_options_that_say_no_end_are_no_end(text):
    assert exit_options({"exit_interval": text, "exit_duration_in_mins": text}) == ExitOptions()


def test_the_earliest_time_limit_of_a_jobs_ranks_counts():
    limits = (None, NOW + 9.0, NOW + 5.0)
    ranks = [
        RankPlacement(job="llm", rank=rank, time_limit_unix_s=limit) for rank, limit in enumerate(limits)
    ]
    assert limit_unix_s(ranks) == NOW + 5.0
    assert limit_unix_s(ranks[:1]) is None


def test_exactly_enough_time_is_enough_and_one_step_less_is_not():
    needed = needed_s(CaptureTool.KINETO, lead_s=14.0, window_s=7.5)
    assert needed == 14.0 + 7.5 + 5.0 + MARGIN_S
    enough = changed(step=0, train_steps=59, step_time_s=needed / 59)
    assert too_late(job_end(enough, NOW), CaptureTool.KINETO, needed) == ""
    one_less = changed(step=1, train_steps=59, step_time_s=needed / 59)
    assert too_late(job_end(one_less, NOW), CaptureTool.KINETO, needed)


def test_a_capture_that_runs_is_stopped_when_writing_just_fits():
    least_s = writing_s(CaptureTool.NSYS) + MARGIN_S
    just = changed(step=59, step_time_s=least_s)
    assert ends_now(job_end(just, NOW), CaptureTool.NSYS) == ""
    reason = ends_now(job_end(just, NOW + 0.5), CaptureTool.NSYS)
    assert reason.startswith(
        "The capture was stopped: the job ends in about 12 s (1 of 60 steps left at 13 s)"
    )
    assert ends_now(None, CaptureTool.NSYS) == ""


@pytest.mark.parametrize("tool", sorted(FOR_HANGS))
def test_a_look_at_a_job_that_hangs_needs_no_time(tool):
    assert needed_s(tool, lead_s=14.0, window_s=300.0) == 0.0


@pytest.mark.parametrize(
    ("steps", "step_time_s", "expected_s"),
    [(5, 1.5, 10.5), (5, None, 30.0), (None, 1.5, 30.0), (100, 1.5, 30.0)],
)
def test_a_window_is_two_cut_steps_longer_and_never_beyond_the_cap(steps, step_time_s, expected_s):
    assert window_s(steps, step_time_s, 30.0) == expected_s


times = st.floats(min_value=1e-3, max_value=1e4)


@given(
    step=st.integers(0, 10**6),
    left=st.integers(0, 10**4),
    step_time_s=times,
    since_s=st.floats(0, 1e5),
    limit_s=st.none() | st.floats(-1e5, 1e5),
    lead_s=st.floats(0, 120),
    length_s=st.floats(0, 300),
    tool=st.sampled_from(CaptureTool),
)
def test_whatever_is_admitted_is_over_before_the_job_is(
    step, left, step_time_s, since_s, limit_s, lead_s, length_s, tool
):
    pace = Pace(
        step=step,
        stepped_unix_s=NOW - since_s,
        train_steps=step + left,
        step_time_s=step_time_s,
        limit_unix_s=None if limit_s is None else NOW + limit_s,
    )
    needed = needed_s(tool, lead_s=lead_s, window_s=length_s)
    end = job_end(pace, NOW)
    assert 0.0 <= end.in_s < math.inf
    admitted = not too_late(end, tool, needed)
    assert admitted == (end.in_s >= needed)
    if admitted and tool not in FOR_HANGS:
        assert lead_s + length_s + writing_s(tool) <= end.in_s, "not even the margin is used"
        assert not ends_now(end, tool), "what was just admitted is not stopped at once"
