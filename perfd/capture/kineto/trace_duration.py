"""How long to trace with Kineto: pure decisions."""

from __future__ import annotations

from dataclasses import dataclass

from perfd.capture.expected_job_end import window_s
from perfd.capture.node import CapturePlan

_SHORTEST_STEPS = 1
"""A capture has at least one whole step."""
_SHORTEST_S = 1.0
"""Without a step time: libkineto's own thread looks once per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How long the processes are traced."""

    length_s: float
    """By iteration: the longest time until the trace is over."""
    steps: int | None
    """The number of whole steps that it should have; None for any."""
    note: str = ""
    """Why that is less than requested."""


def window(plan: CapturePlan, *, iteration_roundup: int | None, wait_at_exit: bool) -> Window:
    """The window of a capture.

    A process crashes if it ends within its window, and a window cannot be closed early. If the job's end is
    unknown and not all processes `wait_at_exit`, it is therefore just long enough for a whole step.
    """
    asked_s = _length_s(plan.steps, plan, iteration_roundup)
    if plan.end_is_planned or wait_at_exit:
        return Window(length_s=asked_s, steps=plan.steps)
    shortest_s = min(plan.max_duration_s, _SHORTEST_S)
    if plan.step_time_s is not None:
        shortest_s = _length_s(_SHORTEST_STEPS, plan, iteration_roundup)
    if asked_s <= shortest_s and (plan.steps or 0) <= _SHORTEST_STEPS:
        return Window(length_s=asked_s, steps=plan.steps)
    return Window(
        length_s=min(asked_s, shortest_s),
        steps=None if plan.steps is None else _SHORTEST_STEPS,
        note="Traced as short as possible: the job's end is unknown, and a process that ends while it is "
        "traced crashes; `perfd run --kineto` prevents that.",
    )


def _length_s(steps: int | None, plan: CapturePlan, iteration_roundup: int | None) -> float:
    if steps is not None and iteration_roundup is not None:
        steps += iteration_roundup - 1
    return window_s(steps, plan.step_time_s, plan.max_duration_s)
