"""What NCCL's kernels say of a job: transfer, waiting, and the rank that is waited for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import description, job_data, phase_table, step_table

from perfd.analysis.collectives.nccl_summary import group_name, nccl
from perfd.analysis.data.job_data import CollectiveStack, Method
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.analysis.findings import Culprit, Kind
from perfd.model import ParallelLayout, RankPlacement, TimingSource
from tests.support.nccl_records import CollectiveTable, NcclTime, stacks_of

DP4 = description(world_size=4, dp=4, micro_batch_size=1, global_batch_size=8)
PP2DP2 = description(world_size=4, dp=2, pp=2, micro_batch_size=1, global_batch_size=8)


def table(ranks, arrivals_s, transfer_s=0.01, operations=100, kernel_ratio=None, **fields) -> CollectiveTable:
    """All-reduces into which the ranks come so late; each ends `transfer_s` after the last has come."""
    late = np.asarray(arrivals_s, dtype=float)
    durations = np.tile(late.max() - late + transfer_s, (operations, 1))
    return CollectiveTable(
        **{
            "communicator": "ab",
            "operation": "AllReduce",
            "ranks": ranks,
            "sequence": np.arange(operations),
            "durations_s": durations,
            "size_bytes": np.full(operations, 1e9),
            # Ten of them a second.
            "kernel_ratio": durations[0] * 10 if kernel_ratio is None else np.asarray(kernel_ratio),
        }
        | fields
    )


def summary(tables, job=DP4, busy=None) -> JobSummary:
    ranks = sorted({rank for t in tables for rank in t.ranks})
    shares = busy or {
        rank: sum(t.kernel_ratio[list(t.ranks).index(rank)] for t in tables if rank in t.ranks)
        for rank in ranks
    }
    times = [NcclTime(rank=r, busy_s=10 * shares[r], span_s=10.0, lost_operations=0) for r in ranks]
    return summarise(
        job_data(step_table([0.1] * 200), description=job, collectives=tables, nccl=times), AnalysisSettings()
    )


def test_a_rank_that_comes_late_is_named_with_what_its_peers_wait_for_it():
    result = summary([table([0, 1, 2, 3], [0, 0, 0.02, 0])])

    assert result.bottleneck.kind is Kind.STRAGGLER
    assert result.bottleneck.culprits == (Culprit(kind="rank", id=2),)
    assert result.bottleneck.gain_ratio == pytest.approx(0.2)
    late = result.nccl.ranks[2]
    assert (late.wait_ratio, late.gain_ratio, late.last_ratio) == pytest.approx((0, 0.2, 1))
    assert result.nccl.ranks[0].wait_ratio == pytest.approx(0.2)


def test_transfer_and_waiting_add_up_to_the_time_in_kernels():
    result = summary([table([0, 1, 2, 3], [0, 0, 0.02, 0])])

    communication = result.communication
    assert communication.share_ratio == pytest.approx((0.3 * 3 + 0.1) / 4)
    assert communication.transfer_ratio == pytest.approx(0.1)
    assert communication.wait_ratio == pytest.approx(0.15)
    assert communication.source == "nccl plugin: kernels on the GPU"


def test_waiting_is_not_blamed_on_the_network():
    result = summary([table([0, 1, 2, 3], [0, 0, 0.05, 0])])

    assert all(finding.kind is not Kind.COMMUNICATION for finding in result.findings)


def test_long_transfers_without_waiting_name_communication_and_no_rank():
    result = summary([table([0, 1, 2, 3], [0, 0, 0, 0], transfer_s=0.04)])

    assert result.bottleneck.kind is Kind.COMMUNICATION
    assert result.bottleneck.culprits == ()
    assert result.nccl.groups[0].bus_bytes_per_s == pytest.approx(1e9 / 0.04 * 1.5)


def test_a_last_rank_that_changes_from_operation_to_operation_is_nobodys_fault():
    calm = table([0, 1, 2, 3], [0, 0, 0, 0])
    shift = np.tile(0.02 * (1 - np.eye(4)), (25, 1))

    result = summary(
        [table([0, 1, 2, 3], [0, 0, 0, 0], durations_s=calm.durations_s + shift, kernel_ratio=[0.25] * 4)]
    )

    assert result.bottleneck.kind is not Kind.STRAGGLER


def test_a_persistent_last_rank_that_costs_little_is_not_named():
    result = summary([table([0, 1, 2, 3], [0, 0, 0.001, 0])])

    assert result.bottleneck.kind is not Kind.STRAGGLER


def test_a_later_stage_that_is_last_by_design_is_not_blamed():
    result = summary([table([0, 2], [0, 0.05]), table([1, 3], [0, 0.05], communicator="cd")], job=PP2DP2)

    assert all(rank.gain_ratio is None for rank in result.nccl.ranks)
    assert result.bottleneck.kind is not Kind.STRAGGLER


def test_a_rank_of_a_large_number_costs_no_more_than_another_and_is_named_by_it():
    far = 10**15

    def of(ranks):
        job = description(world_size=None, dp=None, pp=None)
        return summary([table(ranks, [0, 0, 0.02, 0])], job=job)

    near, result = of([0, 1, 2, 3]), of([0, 1, far, 2 * far])

    assert near.bottleneck.culprits == (Culprit(kind="rank", id=2),)
    assert result.bottleneck.culprits == (Culprit(kind="rank", id=far),)
    assert [rank.rank for rank in result.nccl.ranks] == [0, 1, far, 2 * far]
    assert [replace(rank, rank=0) for rank in result.nccl.ranks] == [
        replace(rank, rank=0) for rank in near.nccl.ranks
    ]
    assert (result.nccl.groups[0].ranks, result.nccl.groups[0].last_rank) == ((0, 1, far, 2 * far), far)


def test_a_rank_that_waits_more_than_usual_is_distinguished_before_its_usual_time_in_kernels_follows():
    late = table([0, 1, 2, 3], [0, 0, 0.03, 0])

    def slowdowns(lately_ratio):
        times = [
            NcclTime(
                rank=r,
                busy_s=1.0,
                span_s=10.0,
                lost_operations=0,
                lately_ratio=lately_ratio if r != 2 else 0.1,
            )
            for r in range(4)
        ]
        job = job_data(step_table([0.1] * 200), description=DP4, collectives=[late], nccl=times)
        return [rank.slowdown_ratio for rank in summarise(job, AnalysisSettings()).nccl.ranks]

    assert slowdowns(0.4) == pytest.approx([1, 1, 1 / 0.7, 1])
    # Nobody waits for longer than it is in kernels.
    assert slowdowns(0.2) == pytest.approx([1, 1, 1 / 0.8, 1])
    assert slowdowns(None) == pytest.approx([1, 1, 1 / 0.9, 1])


def test_a_late_root_of_broadcasts_is_named_where_all_ranks_do_the_same():
    broadcasts = table([0, 1, 2, 3], [0.02, 0, 0, 0], operation="Broadcast")
    assert summary([broadcasts]).bottleneck.culprits == (Culprit(kind="rank", id=0),)
    # In a tensor group, and from stage to stage, the first rank has more to do: it reads the data.
    tp4 = description(world_size=4, tp=4, micro_batch_size=1, global_batch_size=8)
    assert summary([broadcasts], job=tp4).bottleneck.culprits == ()


@pytest.mark.parametrize(("busy_s", "kind"), [(0.0, Kind.UNKNOWN), (4.0, Kind.STRAGGLER)])
def test_before_steps_are_seen_a_rank_costs_no_more_than_any_usually_is_in_kernels(busy_s, kind):
    # The first operations of a job wait for whoever starts up slowly.
    late = table([0, 1, 2, 3], [0, 0, 0.03, 0])
    times = [NcclTime(rank=r, busy_s=busy_s, span_s=10.0, lost_operations=0) for r in range(4)]
    job = job_data(step_table([]), description=DP4, collectives=[late], nccl=times)
    assert summarise(job, AnalysisSettings()).bottleneck.kind is kind


@pytest.mark.parametrize(("late_s", "kind"), [(0.0249, Kind.UNKNOWN), (0.0251, Kind.STRAGGLER)])
def test_without_steps_a_rank_is_named_only_if_it_costs_a_quarter(late_s, kind):
    late = table([0, 1, 2, 3], [0, 0, late_s, 0])
    times = [NcclTime(rank=r, busy_s=4.0, span_s=10.0, lost_operations=0) for r in range(4)]
    job = job_data(step_table([]), description=DP4, collectives=[late], nccl=times)
    result = summarise(job, AnalysisSettings())
    assert result.bottleneck.kind is kind


def test_a_frequent_kind_of_operation_counts_by_its_time_not_by_its_rows():
    frequent = table([0, 1, 2, 3], [0, 0, 0, 0], kernel_ratio=[0.5] * 4)
    rare = table([0, 1, 2, 3], [0, 0, 0.02, 0], communicator="cd", kernel_ratio=[0.003, 0.003, 0.001, 0.003])

    result = summary([frequent, rare])

    assert result.nccl.ranks[2].gain_ratio == pytest.approx(0.002)


def test_too_few_operations_or_a_silent_rank_leave_the_waiting_open():
    few = nccl(
        job_data(step_table([1.0]), collectives=[table([0, 1], [0, 1], operations=3)]), ParallelLayout()
    )
    durations = np.full((50, 2), np.nan)
    silent = summary([table([0, 1], [0, 0], operations=50, durations_s=durations, kernel_ratio=[0.1, 0.1])])

    assert few.groups[0].operations == 3
    assert silent.nccl.ranks[0].wait_ratio is None
    assert silent.communication.transfer_ratio is None
    assert silent.communication.share_ratio == pytest.approx(0.1)


def test_without_the_plugin_nothing_is_said():
    result = summarise(job_data(step_table([1.0] * 20), description=DP4), AnalysisSettings())

    assert result.nccl.share_ratio is None
    assert result.communication.share_ratio is None


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ([0, 1], "tp"),
        ([6, 7], "tp"),
        ([0, 2], "dp"),
        ([5, 7], "dp"),
        ([0, 4], "pp"),
        (list(range(8)), "world"),
        ([0, 3], None),
        ([0, 1, 2, 3], None),
        ([3], None),
    ],
)
def test_communicators_are_named_by_their_members(ranks, name):
    assert group_name(ranks, ParallelLayout(world_size=8, tp=2, dp=2, pp=2, cp=1)) == name


def test_a_communicator_for_a_few_numbers_does_not_stand_for_the_one_that_moves_data():
    data = table([0, 1, 2, 3], [0, 0, 0, 0], transfer_s=0.01)
    numbers = table([0, 1, 2, 3], [0, 0, 0, 0], transfer_s=3e-6, communicator="cd", kernel_ratio=[3e-5] * 4)

    (kind,) = summary([data, numbers]).nccl.kinds

    assert (kind.communicators, kind.transfer_s) == (2, pytest.approx(0.01))


def test_lines_that_say_they_cover_billions_of_steps_take_no_memory_for_each():
    steps = step_table([0.1] * 60, steps_covered=[1, *[1 << 40] * 59])

    result = summarise(
        job_data(steps, description=DP4, collectives=[table([0, 1], [0, 1])]), AnalysisSettings()
    )

    assert result.nccl.groups[0].ranks == (0, 1)


def test_communicators_side_by_side_show_what_each_shows_alone():
    random = np.random.default_rng(1)
    tables = [
        table(
            [2 * pair, 2 * pair + 1],
            [0, 0.02],
            communicator=str(pair),
            operations=30,
            durations_s=0.01 + random.random((30, 2)),
            operations_per_s=10.0,
            best_s_per_byte=1e-11 if pair else None,
            best_size_bytes=1e9 if pair else 0.0,
        )
        for pair in range(4)
    ]
    stack = CollectiveStack(
        operation="AllReduce",
        communicators=[one.communicator for one in tables],
        ranks=np.arange(8).reshape(4, 2),
        lengths=np.full(4, 30),
        sequence=np.tile(np.arange(30), (4, 1)),
        durations_s=np.stack([one.durations_s for one in tables]),
        size_bytes=np.full((4, 30), 1e9),
        kernel_ratio=np.stack([one.kernel_ratio for one in tables]),
        operations_per_s=np.full(4, 10.0),
        best_s_per_byte=np.array([np.nan, 1e-11, 1e-11, 1e-11]),
        best_size_bytes=np.array([0.0, 1e9, 1e9, 1e9]),
        timings=[TimingSource.GPU] * 4,
        sources=[""] * 4,
    )

    def reported(*collectives):
        return nccl(job_data(step_table([0.1] * 20), collectives=collectives), ParallelLayout(), step_s=0.1)

    # A kind is what communicators of one size do, so there each has its own.
    alone = reported(*(one for table in tables for one in stacks_of([table])))
    assert replace(alone, kinds=()) == replace(reported(stack), kinds=())
    assert reported(stack).slow_groups
    ring = Method(algorithm="RING", protocol="SIMPLE", channels=24)
    (kind,) = reported(replace(stack, methods=[ring] * 4)).kinds
    assert kind.method == ring


def test_phases_that_hold_waiting_do_not_hide_who_is_slow():
    # All ranks of a data-parallel loop end their backward together, the late one and those that waited.
    steps = step_table([0.1] * 200)
    late = table([0, 1, 2, 3], [0, 0, 0.02, 0])
    times = [
        NcclTime(rank=r, busy_s=1.0 if r == 2 else 3.0, span_s=10.0, lost_operations=0) for r in range(4)
    ]
    data = job_data(steps, description=DP4, collectives=[late], nccl=times)
    hooked = replace(data, phases=phase_table(steps, by_rank={"forward": [0.03] * 4, "backward": [0.06] * 4}))

    bare, result = (summarise(one, AnalysisSettings()) for one in (data, hooked))

    assert result.slowdowns == bare.slowdowns
    assert max(result.slowdowns, key=lambda one: one.ratio).rank == 2
    assert result.breakdown.spread_ratio is None


def test_nobody_is_said_to_wait_for_longer_than_there_was_time():
    # Thirty of them a step, each waited for half a step: they must have run beside each other.
    beside = table([0, 1, 2, 3], [0, 0, 0.05, 0], operations=600, operations_per_s=300.0)

    result = summary([beside])

    assert result.nccl.ranks[2].gain_ratio <= 1


@pytest.mark.parametrize(("pids", "least", "most"), [((7, 8), 0.04, 0.07), ((7, 7), 0.32, 0.34)])
def test_gpus_that_one_process_launches_lose_what_steps_are_longer_by(pids, least, most):
    # Until the slow GPU is done the process launches nothing on the other, which does not wait in NCCL.
    lasted_s = [0.2] * 40 + [0.3] * 20
    late = table([0, 1], [0, 0], operations=60, operations_per_s=1 / 0.3)
    late.durations_s[40:, 0] += 0.02
    placed = {
        "n0": tuple(RankPlacement(job="llm", rank=rank, gpu=rank, pid=pid) for rank, pid in enumerate(pids))
    }
    times = [NcclTime(rank=rank, busy_s=1.0, span_s=10.0, lost_operations=0) for rank in (0, 1)]
    data = job_data(step_table(lasted_s), collectives=[late], nccl=times, placements=placed)

    (slow,) = (one for one in summarise(data, AnalysisSettings()).nccl.ranks if one.rank == 1)

    assert least <= slow.gain_ratio <= most


@pytest.mark.parametrize(("ago_s", "counts"), [(29.0, True), (31.0, False)])
def test_a_rank_whose_reading_is_old_does_not_count(ago_s: float, counts: bool) -> None:
    times = [
        NcclTime(rank=0, busy_s=1.0, span_s=10.0, lost_operations=0, read_s=100.0),
        NcclTime(rank=1, busy_s=3.0, span_s=10.0, lost_operations=0, read_s=100.0 - ago_s),
    ]

    result = summarise(job_data(step_table([0.1] * 20), nccl=times), AnalysisSettings())

    assert result.nccl.share_ratio == pytest.approx(0.2 if counts else 0.1)
