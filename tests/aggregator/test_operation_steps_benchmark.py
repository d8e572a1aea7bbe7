"""The benchmark of steps by NCCL operations, on a recording with CUDA events."""

from __future__ import annotations

from benchmarks import operation_steps
from benchmarks.operation_steps import DEFAULT, Found, Truth, error_ratio
from perfd.model import TrainingStep


def rows(*step_s: float) -> list[TrainingStep]:
    return [TrainingStep(job="j", step=2 + at, step_time_s=one) for at, one in enumerate(step_s)]


def test_errors_are_by_step_and_of_phases_without_their_edges():
    found = Found(rows=rows(*[0.1] * 9, *[0.2] * 9), exact=True, certain=True)
    assert (
        round(error_ratio(found, Truth(source="log", step_s=dict.fromkeys(range(1, 20), 0.08))), 3) == 0.875
    )
    phases = {step: 0.1 if step <= 10 else 0.21 for step in range(1, 20)}
    assert round(error_ratio(found, Truth(source="phases", step_s=phases)), 3) == -0.024


def test_a_recording_with_accumulation_and_without_a_norm_has_exact_steps(capsys):
    operation_steps.main([str(DEFAULT / "recorded_starts" / "fsdpacc2")])
    shown = capsys.readouterr().out
    assert "78 of 78 (phases)" in shown
    assert "micro-batches" not in shown
    assert "with start times: 1 recordings, steps in 1, count exact in 1, median within 1% in 1" in shown
