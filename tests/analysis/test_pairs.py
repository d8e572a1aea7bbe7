"""Receives whose end NCCL does not tell, in a pipeline of two stages that is played here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from analysis.jobs import description, job_data, step_table
from hypothesis import given
from hypothesis import strategies as st

from perfd.analysis.data.job_data import CollectiveStack, Floats, Ints
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.analysis.findings import Culprit, Kind
from perfd.analysis.operations.p2p_timing import receiver_durations_s
from perfd.model import TimingSource
from tests.support.nccl_records import NcclTime

SEND_NS = 70_000
MS = 1_000_000
AFTER_NS = 5 * MS
"""What comes after the schedule in each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """What NCCL tells of the messages from one stage to the other, and what really was."""

    reported_s: Floats
    starts_ns: Ints
    truth_s: Floats


def played(
    steps: int, *, first_ns: int, last_ns: int, apart_ns: int = MS, drift: float = 0.0, micro_batches: int = 4
) -> tuple[Direction, Direction, int]:
    """Activations, gradients, and how long it takes; a micro-batch takes `first_ns` on one stage.

    A third of it is forward. Of a receive beside a send NCCL tells when the send has left, which never waits.
    """
    sent: list[list[int]] = [[], []]
    received: list[list[tuple[int, int, bool]]] = [[], []]
    """When it began, when it ended, and whether it was alone in its kernel."""
    now = [0, 0]

    def work(stage: int, thirds: int) -> None:
        now[stage] += thirds * (first_ns, last_ns)[stage] // 3

    def receive(stage: int, number: int, *, alone: bool) -> None:
        ends = max(now[stage], sent[1 - stage][number]) + SEND_NS
        received[stage].append((now[stage], ends, alone))
        now[stage] = ends

    for step in range(steps):
        base = step * micro_batches
        work(0, 1)
        sent[0].append(now[0])
        receive(1, base, alone=True)
        for number in range(micro_batches):
            is_last = number == micro_batches - 1
            work(1, 3)
            if not is_last:
                work(0, 1)
                sent[0].append(now[0])
            sent[1].append(now[1])
            receive(0, base + number, alone=is_last)
            if not is_last:
                receive(1, base + number + 1, alone=False)
            work(0, 2)
        now = [moment + AFTER_NS for moment in now]
    directions = []
    for sender, receiver in ((0, 1), (1, 0)):
        begin, end, alone = map(np.array, zip(*received[receiver], strict=True))
        clock = 10**9 + apart_ns * np.array([0, 1])[[sender, receiver]]
        starts = np.stack([np.array(sent[sender]), begin], axis=1) + clock
        starts[:, int(sender == 0)] += (drift * begin).astype(np.int64)
        reported = np.stack([np.full(len(end), SEND_NS), np.where(alone, end - begin, SEND_NS)], axis=1)
        directions.append(Direction(reported_s=reported / 1e9, starts_ns=starts, truth_s=(end - begin) / 1e9))
    return directions[0], directions[1], max(now)


@given(st.integers(-(10**8), 10**12), st.floats(-2e-5, 2e-5))
def test_a_receive_lasts_until_its_sender_sent_whatever_the_clocks_say(apart_ns: int, drift: float) -> None:
    for one in played(30, first_ns=15 * MS, last_ns=19 * MS, apart_ns=apart_ns, drift=drift)[:2]:
        assert receiver_durations_s(one.reported_s, one.starts_ns) == pytest.approx(one.truth_s, abs=2e-5)


def test_a_receiver_that_never_waits_is_left_alone() -> None:
    _, gradients, _ = played(30, first_ns=30 * MS, last_ns=3 * MS)

    found = receiver_durations_s(gradients.reported_s, gradients.starts_ns)

    assert found == pytest.approx(gradients.reported_s[:, 1])


def test_without_starts_or_with_too_few_receives_of_their_own_nothing_changes() -> None:
    _, gradients, _ = played(30, first_ns=15 * MS, last_ns=19 * MS)
    reported, starts = gradients.reported_s, gradients.starts_ns

    assert receiver_durations_s(reported, np.full_like(starts, -1)) == pytest.approx(reported[:, 1])
    assert receiver_durations_s(reported[:8], starts[:8]) == pytest.approx(reported[:8, 1])


def test_one_mark_that_is_wrong_moves_nothing() -> None:
    _, gradients, _ = played(30, first_ns=15 * MS, last_ns=19 * MS)
    reported, truth = gradients.reported_s, gradients.truth_s
    reported[59, 1] += 0.004

    found = np.delete(receiver_durations_s(reported, gradients.starts_ns), 59)

    assert found == pytest.approx(np.delete(truth, 59), abs=2e-5)


def test_receives_whose_sender_began_at_an_unknown_time_say_nothing_of_the_clocks() -> None:
    _, gradients, _ = played(30, first_ns=15 * MS, last_ns=19 * MS)
    starts = gradients.starts_ns.copy()
    starts[3::8, 0] = -1

    found = receiver_durations_s(gradients.reported_s, starts)

    assert found == pytest.approx(gradients.truth_s, abs=2e-5)


def test_operations_that_are_not_known_on_both_sides_stay_unknown() -> None:
    _, gradients, _ = played(30, first_ns=15 * MS, last_ns=19 * MS)
    reported, truth = gradients.reported_s, gradients.truth_s
    reported[10, 0] = reported[11, 1] = np.nan

    found = receiver_durations_s(reported, gradients.starts_ns)

    assert found[10] == reported[10, 1]
    assert np.isnan(found[11])
    assert np.delete(found, [10, 11]) == pytest.approx(np.delete(truth, [10, 11]), abs=2e-5)


@given(st.data())
def test_whatever_is_reported_nothing_gets_shorter(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    number = st.one_of(st.just(float("nan")), st.floats(0, 100))
    reported = np.array(data.draw(st.lists(st.tuples(number, number), min_size=count, max_size=count)))
    start = st.integers(-1, 2**62)
    starts = np.array(data.draw(st.lists(st.tuples(start, start), min_size=count, max_size=count)))

    found = receiver_durations_s(reported, starts)

    assert (np.isnan(found) == np.isnan(reported[:, 1])).all()
    assert (found >= reported[:, 1])[np.isfinite(found)].all()


def summary_of(*, first_ns: int, last_ns: int, micro_batches: int = 4, starts: bool = True) -> JobSummary:
    steps = 60
    activations, gradients, total_ns = played(
        steps, first_ns=first_ns, last_ns=last_ns, micro_batches=micro_batches
    )
    total_s = total_ns / 1e9
    stacks = [
        CollectiveStack(
            operation="SendRecv",
            communicators=["ab"],
            ranks=np.array([ranks]),
            lengths=np.array([len(one.truth_s)]),
            sequence=np.arange(len(one.truth_s))[None],
            durations_s=one.reported_s[None],
            size_bytes=np.full((1, len(one.truth_s)), 1.6e7),
            gpu_starts_ns=one.starts_ns[None] if starts else None,
            kernel_ratio=one.reported_s.sum(axis=0)[None] / total_s,
            operations_per_s=np.array([len(one.truth_s) / total_s]),
            best_s_per_byte=np.array([np.nan]),
            best_size_bytes=np.array([np.nan]),
            timings=[TimingSource.GPU],
            sources=[""],
        )
        for one, ranks in ((activations, [0, 1]), (gradients, [1, 0]))
    ]
    times = [
        NcclTime(rank=rank, busy_s=float(one.reported_s[:, 1].sum()), span_s=total_s, lost_operations=0)
        for rank, one in enumerate((gradients, activations))
    ]
    layout = description(world_size=2, dp=1, pp=2, micro_batch_size=1, global_batch_size=micro_batches)
    job = job_data(step_table([total_s / steps] * 200), description=layout, collectives=stacks, nccl=times)
    return summarise(job, AnalysisSettings())


def test_stages_that_wait_for_each_other_are_reported_without_timers() -> None:
    result = summary_of(first_ns=18 * MS, last_ns=18 * MS, micro_batches=2)

    assert result.pipeline.source == "nccl plugin: waiting in sends and receives"
    assert result.pipeline.stall_ratio == pytest.approx(18 / 59, abs=0.01)
    assert result.bottleneck.kind is Kind.PIPELINE_BUBBLE
    assert result.nccl.share_ratio == pytest.approx(result.pipeline.stall_ratio, abs=0.02)


def test_the_stage_that_waits_for_nobody_is_the_heavy_one() -> None:
    result = summary_of(first_ns=15 * MS, last_ns=35 * MS)

    assert result.bottleneck.kind is Kind.PIPELINE_IMBALANCE
    assert result.bottleneck.culprits == (Culprit(kind="stage", id=1),)
    assert [stage.stall_ratio for stage in result.pipeline.stages] == pytest.approx(
        [95 / 160, 15 / 160], abs=0.02
    )


def test_without_the_starts_of_operations_the_stall_stays_open() -> None:
    assert summary_of(first_ns=18 * MS, last_ns=18 * MS, starts=False).pipeline.stall_ratio is None
