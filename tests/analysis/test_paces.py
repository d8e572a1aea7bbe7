"""How many operations a step has does not change when the job becomes slower."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import step_table

from perfd.analysis.operations.communicator_waits import CommunicatorBatch, stacked
from perfd.analysis.operations.operation_rate import mean_step_s, paced
from perfd.model import ParallelLayout
from tests.support.nccl_records import CollectiveTable, stacks_of

PER_STEP = 8


def stack(operations_per_s: float, counted_s: float | None) -> CommunicatorBatch:
    one = CollectiveTable(
        communicator="ab",
        operation="AllReduce",
        ranks=[0, 1],
        sequence=np.arange(4),
        durations_s=np.full((4, 2), 0.01),
        size_bytes=np.full(4, 1e6),
        kernel_ratio=np.array([0.1, 0.1]),
        operations_per_s=operations_per_s,
        counted_s=counted_s,
    )
    return stacked(stacks_of([one]), ParallelLayout())[0]


def per_step(one: CommunicatorBatch, step_s: float) -> float:
    return float(one.collectives.operations_per_s[0]) * step_s


def test_operations_of_a_step_follow_from_what_was_counted_over_the_same_time():
    # It takes twice as long since four steps; the usual step is still the one before.
    steps = step_table([1.0] * 30 + [2.0] * 4)
    span_s = 20.0
    counted = PER_STEP * (12 + 4) / span_s
    reported = paced(stack(counted, span_s), steps, 1.0)

    assert counted == 6.4
    assert per_step(reported, 1.0) == pytest.approx(PER_STEP)


def test_pauses_and_lines_of_several_steps_count_by_the_time_that_they_took():
    steps = step_table([1.0] * 20)
    paused = replace(steps, time_unix_s=steps.time_unix_s + np.where(np.arange(20) >= 15, 5.0, 0.0))
    assert mean_step_s(paused, np.array([10.0])) == pytest.approx([10 / 5])
    sparse = step_table([5.0] * 20, steps_covered=np.full(20, 5))
    assert mean_step_s(sparse, np.array([50.0])) == pytest.approx([1.0])


@pytest.mark.parametrize(
    "steps",
    [
        step_table([]),
        step_table([1.0] * 5),
        step_table([10.0] * 20),
        step_table([1.0] * 9),
        step_table([1.0] * 20, time_unix_s=np.arange(20)[::-1].astype(float)),
        step_table([1.0] * 20, time_unix_s=np.full(20, np.nan)),
    ],
    ids=["no log", "few lines", "few lines in that time", "begins later", "clock set back", "no times"],
)
def test_a_log_that_does_not_report_that_time_changes_nothing(steps):
    reported = stack(7.0, 32.0)
    assert per_step(paced(reported, steps, 1.0), 1.0) == 7.0
    assert paced(reported, steps, None) is reported


def test_without_the_span_of_the_count_nothing_changes():
    steps = step_table([1.0] * 40)
    assert per_step(paced(stack(7.0, None), steps, 2.0), 1.0) == 7.0
