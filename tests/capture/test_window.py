"""How long Kineto traces: nothing can close its window when the job ends."""

from dataclasses import replace
from pathlib import Path

import pytest

from perfd.capture.kineto.trace_duration import window
from perfd.capture.node.capture_tool import CapturePlan

PLAN = CapturePlan(
    capture_id="c1", directory=Path("/x"), max_duration_s=30.0, max_bytes=1, steps=5, step_time_s=1.5
)


def chosen(plan=PLAN, *, roundup=None, wait_at_exit=False):
    return window(plan, iteration_roundup=roundup, wait_at_exit=wait_at_exit)


@pytest.mark.parametrize(
    ("plan", "wait_at_exit"), [(replace(PLAN, end_is_planned=True), False), (PLAN, True)]
)
def test_what_was_asked_for_is_traced_when_no_end_can_hurt(plan, wait_at_exit):
    found = chosen(plan, wait_at_exit=wait_at_exit)
    assert (found.length_s, found.steps, found.note) == (10.5, 5, "")


def test_else_one_whole_step_is_traced_and_the_note_says_why():
    found = chosen()
    assert (found.length_s, found.steps) == (4.5, 1)
    assert "the job's end is unknown" in found.note


def test_without_a_step_time_a_second_is_traced():
    assert chosen(replace(PLAN, step_time_s=None)).length_s == 1.0
    assert chosen(replace(PLAN, step_time_s=None, steps=None)).length_s == 1.0
    assert chosen(replace(PLAN, step_time_s=None, steps=None, max_duration_s=0.3)).length_s == 0.3


def test_a_length_without_steps_is_cut_to_one_step_too():
    assert chosen(replace(PLAN, steps=None)).length_s == 4.5


def test_what_is_that_short_already_needs_no_note():
    found = chosen(replace(PLAN, steps=1))
    assert (found.length_s, found.steps, found.note) == (4.5, 1, "")


def test_by_iteration_the_number_of_steps_is_what_ends_the_window():
    assert chosen(roundup=10, wait_at_exit=True).length_s == 24.0
    found = chosen(roundup=10)
    assert (found.length_s, found.steps) == (18.0, 1)
