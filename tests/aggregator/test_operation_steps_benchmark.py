"""The benchmark of steps by NCCL operations, on a recording with CUDA events."""

from __future__ import annotations

import pytest

from benchmarks import operation_steps
from benchmarks.operation_steps import DEFAULT, Found, Truth, error_ratio
from perfd.model import TrainingStep


def rows(*step_s: float) -> list[TrainingStep]:
    return [TrainingStep(job="j", step=2 + at, step_time_s=one) for at, one in enumerate(step_s)]


def test_medians_of_the_same_steps_are_compared_and_means_where_rows_end_anywhere():
    found = Found(rows=rows(*[0.1] * 8, 0.2), exact=True, doubt=None)
    # Step 1 has no row.
    truth = Truth(source="loop", step_s={1: 9.0, **dict.fromkeys(range(2, 11), 0.08)})

    assert round(error_ratio(found, truth, exact=True), 3) == 0.25
    assert round(error_ratio(found, truth, exact=False), 3) == 0.389


def test_a_recording_with_accumulation_and_without_a_norm_has_exact_steps(capsys):
    operation_steps.main([str(DEFAULT / "recorded_starts" / "fsdpacc2")])
    shown = capsys.readouterr().out
    assert "78 of 78 (loop)" in shown
    assert "micro-batches" not in shown
    assert "with start times: 1 recordings, steps in 1, count exact in 1, step time within 1% in 1" in shown


@pytest.mark.parametrize(
    ("recording", "shown"),
    [
        ("unsynced2", "130 of 130 (loop), median +0.03%, steps or micro-batches"),
        ("policy2", "steps or micro-batches"),
        ("averaged2", "steps or rounds of steps"),
    ],
)
def test_of_a_recording_whose_operations_repeat_otherwise_than_its_steps_no_count_is_certain(
    recording, shown, capsys
):
    operation_steps.main([str(DEFAULT / "recorded_novel" / recording)])
    assert shown in capsys.readouterr().out.splitlines()[0]
