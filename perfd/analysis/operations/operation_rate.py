"""How often operations are, in the time that a step takes now.

Operations are counted over half a minute and more, and a step's usual time is that of the newest fifty. When
a job slows down both follow late, and not alike: one divided by the other would take a step of eight
operations for one of six. How many there are in a step does not change, and follows from operations and steps
that were counted over the same time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfd.analysis.data.job_data import Floats, Ints, StepTable
from perfd.analysis.operations.communicator_waits import CommunicatorBatch

MOST_STEPS = 65_536
"""That are looked at one by one: four times as many as operations of a communicator are in memory."""
_FEWEST_LINES = 5
"""Of the log in that time; by fewer the end of one or another decides."""


def paced(stack: CommunicatorBatch, steps: StepTable, step_s: float | None) -> CommunicatorBatch:
    """The same with so many operations a second as there would be if each step took `step_s`."""
    reported = stack.collectives
    if step_s is None or reported.counted_s is None:
        return stack
    factor = mean_step_s(steps, reported.counted_s) / step_s
    per_s = reported.operations_per_s * np.where(np.isfinite(factor), factor, 1.0)
    return replace(stack, collectives=replace(reported, operations_per_s=per_s))


def each_step_s(steps: StepTable) -> Floats:
    """How long each of the newest steps took, the newest last; of a line of several, their mean for each."""
    return steps.step_time_s[lines_of_steps(steps)]


def lines_of_steps(steps: StepTable) -> Ints:
    """The line of each of the newest steps, the newest last, without those of warm-up and all before them."""
    first = int(np.flatnonzero(steps.warmup)[-1]) + 1 if steps.warmup.any() else 0
    # A line may say that it covers any number of steps.
    covered = np.minimum(steps.steps_covered[first:], MOST_STEPS)
    first += max(0, len(covered) - 1 - int(np.searchsorted(covered[::-1].cumsum(), MOST_STEPS)))
    lines = np.arange(first, len(steps))
    return np.repeat(lines, covered[len(covered) - len(lines) :])[-MOST_STEPS:]


def mean_step_s(steps: StepTable, newest_s: Floats) -> Floats:
    """How long a step took in each of these spans of time before the newest line, pauses included."""
    ends = steps.time_unix_s
    if len(ends) <= _FEWEST_LINES or not np.isfinite(ends).all() or (np.diff(ends) < 0).any():
        return np.full(newest_s.shape, np.nan)
    first = np.minimum(np.searchsorted(ends, ends[-1] - newest_s), len(ends) - 1)
    done = np.cumsum(steps.steps_covered)
    count, lines = done[-1] - done[first], len(ends) - 1 - first
    # A log that begins later than that is about another time.
    whole = (lines >= _FEWEST_LINES) & ((first > 0) | (2 * (ends[-1] - ends[0]) >= newest_s))
    return np.where(whole, (ends[-1] - ends[first]) / np.maximum(count, 1), np.nan)
