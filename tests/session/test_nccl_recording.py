"""A real run whose NCCL plugin was recorded: two H200, Megatron-LM, data parallel."""

from __future__ import annotations

import pytest

from perfd.analysis.diagnosis import JobSummary
from perfd.recording import bundled
from perfd.session.replay_session import ReplayOptions, replay


@pytest.fixture(scope="module")
def summary() -> JobSummary:
    (job,) = replay(ReplayOptions(recording=bundled("dp2_nccl"))).summaries
    return job


def test_time_in_nccl_agrees_with_the_timers_of_the_log(summary: JobSummary) -> None:
    # Megatron's own timers, which synchronise, say what of a step the exposed collectives take.
    communication = summary.communication
    assert communication.source == "nccl plugin: kernels on the GPU"
    assert communication.exposed_ratio is not None
    assert communication.share_ratio == pytest.approx(communication.exposed_ratio, abs=0.01)


def test_transfer_is_distinguished_from_waiting_and_a_healthy_job_has_no_culprit(summary: JobSummary) -> None:
    communication = summary.communication
    assert communication.transfer_ratio is not None
    assert communication.wait_ratio is not None
    assert 0 < communication.wait_ratio < communication.transfer_ratio
    assert summary.bottleneck.culprits == ()
    assert summary.nccl.lost_operations == 0


def test_the_gradient_all_reduce_runs_at_what_nvlink_allows(summary: JobSummary) -> None:
    (gradients,) = [group for group in summary.nccl.groups if group.bus_bytes_per_s is not None]

    # 18 NVLinks of 25 GB/s in each direction; NCCL's ring reaches three quarters of that.
    assert gradients.operation == "AllReduce"
    assert gradients.bus_bytes_per_s == pytest.approx(0.76 * 18 * 25e9, rel=0.05)
    assert gradients.wait_ratio is not None
    assert gradients.wait_ratio < 0.01


def test_barriers_are_nearly_all_waiting(summary: JobSummary) -> None:
    repeated = [group for group in summary.nccl.groups if group.operations > 1]
    tiny = [group for group in repeated if group.transfer_s and group.transfer_s < 10e-6]

    assert tiny
    assert all(group.wait_ratio is not None and group.wait_ratio > 0.5 for group in tiny)
