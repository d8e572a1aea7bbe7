"""What is lost by a late rank: not what its peers wait in kernels, and not what chance does."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from analysis.jobs import description, gpu_table, job_data, step_table

from perfd.analysis.collectives.late_rank_cost import CausedLosses
from perfd.analysis.collectives.step_losses import fewest_blocks
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.analysis.findings import Kind
from perfd.model import GpuColumn
from tests.support.nccl_records import CollectiveTable, NcclTime

STEP_S = 0.08
BUCKETS = 25


def gradients(
    lags_s: np.ndarray, *, buckets: int = BUCKETS, operation: str = "AllReduce", **fields
) -> CollectiveTable:
    """Reductions of steps beside the backward pass: in each, every rank lags by (steps, ranks)."""
    steps, ranks = lags_s.shape
    # The fast ranks' kernels begin when the one before has ended, so a long lag shows in the first alone.
    interval_s = 0.6 * STEP_S / buckets
    waits = (lags_s.max(axis=1, keepdims=True) - lags_s)[:, None, :].repeat(buckets, axis=1)
    waits[:, 1:] = np.minimum(waits[:, 1:], interval_s)
    durations = (waits + 2e-4).reshape(steps * buckets, ranks)
    sizes = np.tile(np.r_[1e6, np.full(buckets - 1, 4e6)], steps)
    return CollectiveTable(
        **{
            "communicator": "ab",
            "operation": operation,
            "ranks": list(range(ranks)),
            "sequence": 1000 + np.arange(steps * buckets),
            "durations_s": durations,
            "size_bytes": sizes,
            "kernel_ratio": durations.sum(axis=0) / (steps * STEP_S),
            "operations_per_s": buckets / STEP_S,
        }
        | fields
    )


def lags(steps: int, ranks: int, late: dict[int, float]) -> np.ndarray:
    """By rank, as shares of a step."""
    result = np.zeros((steps, ranks))
    for rank, share in late.items():
        result[:, rank] = share * STEP_S
    return result


def judged(
    *tables: CollectiveTable,
    step_s: float | None = STEP_S,
    longer: int = 0,
    running: Sequence[float] = (),
    **layout: int,
) -> JobSummary:
    """`longer` of the newest steps take 1.3 times as long; `running`: each GPU in kernels, of time."""
    ranks = max(max(table.ranks) for table in tables) + 1
    steps = step_table([] if step_s is None else [step_s] * (100 - longer) + [1.3 * step_s] * longer)
    job = description(world_size=ranks, **({"dp": ranks} | layout))
    times = [NcclTime(rank=rank, busy_s=6.0, span_s=10.0, lost_operations=0) for rank in range(ranks)]
    return summarise(
        job_data(
            steps,
            description=job,
            collectives=tables,
            nccl=times,
            gpu=gpu_table(steps, {GpuColumn.BUSY: running} if running else {}),
            now_unix_s=2000.0,
        ),
        AnalysisSettings(),
    )


def blamed(summary: JobSummary) -> list[int | str]:
    return [c.id for one in summary.findings if one.kind is Kind.STRAGGLER for c in one.culprits]


def in_turn(operation: str, first: float, later: float) -> CollectiveTable:
    """Two ranks: in each step rank 1 is late once, and rank 0 after that, by such shares of a step."""
    steps, buckets = 60, 4
    waits = np.zeros((steps, buckets, 2))
    waits[:, 1, 0], waits[:, 2, 1] = first * STEP_S, later * STEP_S
    durations = (waits + 2e-4).reshape(steps * buckets, 2)
    return CollectiveTable(
        communicator="ab",
        operation=operation,
        ranks=[0, 1],
        sequence=1000 + np.arange(steps * buckets),
        durations_s=durations,
        size_bytes=np.tile(np.r_[1e6, np.full(buckets - 1, 4e6)], steps),
        kernel_ratio=durations.sum(axis=0) / (steps * STEP_S),
        operations_per_s=buckets / STEP_S,
    )


@pytest.mark.parametrize(
    ("operation", "gain"), [("AllReduce", 0.005), ("ReduceScatter", 0.005), ("AllGather", 0.025)]
)
def test_a_late_rank_is_not_charged_for_its_own_later_waits(operation, gain):
    # As where an NCCL kernel waits for a multiprocessor, first on one GPU, then on the other. In reductions
    # the rank has caught up by then, and it is the other one that is late.
    summary = judged(in_turn(operation, 0.045, 0.02))
    assert [rank.gain_ratio for rank in summary.nccl.ranks] == pytest.approx([0.0, gain], abs=1e-3)
    assert blamed(summary) == []


@pytest.mark.parametrize(
    ("operation", "gain"), [("AllReduce", 0.16), ("ReduceScatter", 0.16), ("AllGather", 0.18)]
)
def test_a_late_rank_is_named_by_what_it_does_not_catch_up(operation, gain):
    summary = judged(in_turn(operation, 0.2, 0.02))
    assert blamed(summary) == [1]
    assert summary.nccl.ranks[1].gain_ratio == pytest.approx(gain, abs=1e-3)


@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
def test_a_lag_that_every_bucket_of_a_step_waits_for_is_lost_once(ranks):
    summary = judged(gradients(lags(40, ranks, {1: 0.005})))

    # The sum of the waits is 12.5% of a step, and the lag is half a percent.
    assert summary.nccl.ranks[1].gain_ratio == pytest.approx(0.005)
    assert blamed(summary) == []


def test_a_rank_that_became_slow_is_found_at_every_look_while_its_fault_fills_the_window():
    # It is always a little behind, so that it is late in every block of recent steps, also before its fault.
    usual = lags(62, 2, {1: 0.02}) * np.random.default_rng(1).uniform(0.8, 1.2, (62, 1))
    missed = []
    for faulty in range(6, 63):
        table = gradients(np.r_[usual[faulty:], lags(faulty, 2, {1: 0.3})])
        summary = judged(table, longer=faulty)
        if blamed(summary) != [1]:
            missed.append(faulty)
    assert missed == []


@pytest.mark.parametrize(
    ("step_s", "late_steps", "named"), [(0.08, 5, False), (0.08, 6, True), (0.3, 5, False), (0.4, 5, True)]
)
def test_a_host_that_pauses_for_a_few_steps_and_less_than_two_seconds_is_not_blamed(
    step_s: float, late_steps: int, named: bool
) -> None:
    late = np.r_[lags(60, 2, {}), lags(late_steps, 2, {1: 0.3})] * (step_s / STEP_S)
    ratios = late.max(axis=1, keepdims=True) - late
    busy = {"kernel_ratio": ratios.sum(axis=0) / (len(late) * step_s), "operations_per_s": BUCKETS / step_s}
    summary = judged(gradients(late, **busy), step_s=step_s, longer=late_steps)
    assert blamed(summary) == ([1] if named else [])


@pytest.mark.parametrize("over", [0, 2, 3, 5])
def test_a_fault_that_has_just_ended_costs_what_it_did_and_is_said_to_be_over(over: int):
    # Four waits of a step, of which the replay counts one only: the steps with the fault say what it costs.
    table = gradients(np.r_[lags(20, 2, {}), lags(60, 2, {1: 0.1}), lags(over, 2, {})], buckets=4)
    steps = step_table([STEP_S] * 100 + [1.3 * STEP_S] * 60 + [STEP_S] * over)
    times = [NcclTime(rank=rank, busy_s=6.0, span_s=10.0, lost_operations=0) for rank in range(2)]
    job = job_data(
        steps,
        description=description(world_size=2, dp=2),
        collectives=[table],
        nccl=times,
        now_unix_s=2000.0,
    )
    summary = summarise(job, AnalysisSettings())
    found = summary.bottleneck

    assert blamed(summary) == [1]
    assert found.gain_ratio == pytest.approx(0.3 / 1.3, rel=0.01)
    assert found.step_s == pytest.approx(1.3 * STEP_S)
    assert "At best 80.0 ms per step instead of 104.0 ms" in found.advice
    said = f"In the newest {over} steps it was not late, so that it may be over"
    assert any(said in sentence for sentence in found.evidence) == (over >= 3)


@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
def test_a_rank_that_costs_a_tenth_of_a_step_is_named_with_what_it_costs(ranks):
    summary = judged(gradients(lags(40, ranks, {1: 0.1})))

    assert blamed(summary) == [1]
    assert summary.bottleneck.gain_ratio == pytest.approx(0.1)
    assert summary.nccl.ranks[1].slowdown_ratio == pytest.approx(1 / 0.9, rel=0.01)
    assert any("would save 10.0% of the step" in sentence for sentence in summary.bottleneck.evidence)


def test_two_ranks_that_are_each_the_last_of_the_other_blame_neither():
    """In two communicators of the same ranks: what is late in one cannot be what the other waits for."""
    first = gradients(lags(40, 2, {1: 0.3}), buckets=5)
    other = gradients(lags(40, 2, {0: 0.2}), buckets=5, communicator="cd")
    assert blamed(judged(first)) == [1]
    assert blamed(judged(first, other)) == []
    # Of three, two that are late are not all of them.
    three = gradients(lags(40, 3, {1: 0.3}), buckets=5)
    assert blamed(judged(three, gradients(lags(40, 3, {1: 0.2}), buckets=5, communicator="cd"))) == [1]


def newly_late(lag_s: float, longer_s: float, *, busy_s: float = 6.0) -> JobSummary:
    """Rank 1 of two is late by as much for each bucket of the newest 20 of 60 steps, which take longer."""
    longer = lags(60, 2, {})
    longer[40:, 1] = lag_s
    table = gradients(longer, buckets=4)
    steps = step_table([STEP_S] * 40 + [STEP_S + longer_s] * 20)
    times = [NcclTime(rank=rank, busy_s=busy_s, span_s=10.0, lost_operations=0) for rank in range(2)]
    return summarise(
        job_data(
            steps,
            description=description(world_size=2, dp=2),
            collectives=[table],
            nccl=times,
            now_unix_s=2000.0,
        ),
        AnalysisSettings(),
    )


@pytest.mark.parametrize(("busy_s", "shown"), [(6.0, True), (0.9, False)])
def test_kernels_that_are_of_the_time_before_are_no_evidence_beside_what_others_wait_since(
    busy_s: float, shown: bool
) -> None:
    """As in recording threaded2: a wait of a third of a step beside kernels of 9% of it."""
    summary = newly_late(0.3 * STEP_S, 0.3 * STEP_S, busy_s=busy_s)
    assert blamed(summary) == [1]
    assert any("own NCCL kernels take" in sentence for sentence in summary.bottleneck.evidence) is shown


@pytest.mark.parametrize("longer", [0.12, 0.2, 0.3])
def test_between_the_longest_wait_and_their_sum_the_longer_steps_say_what_is_lost(longer: float) -> None:
    """A rank that falls further behind between buckets is waited for at each, and costs more than at one."""
    summary = newly_late(0.1 * STEP_S, longer * STEP_S)
    assert blamed(summary) == [1]
    assert summary.bottleneck.gain_ratio == pytest.approx(longer / (1 + longer), rel=0.02)


def test_no_more_is_lost_than_peers_wait_and_no_more_than_steps_are_longer() -> None:
    # Four waits of at most a tenth of the step before; something else made steps longer, too.
    most = newly_late(0.1 * STEP_S, STEP_S).bottleneck
    assert most.kind is not Kind.STRAGGLER or (most.gain_ratio or 0.0) <= 0.4 / 2 + 0.01
    assert blamed(newly_late(0.1 * STEP_S, 0.0)) == []


@pytest.mark.parametrize(
    ("late_ratio", "steps", "running", "named"),
    [
        # A quarter of the time in which hosts leave the idlest GPU idle.
        (0.12, 40, (0.5, 0.5), []),
        (0.13, 40, (0.5, 0.5), [1]),
        (0.12, 40, (0.6, 0.6), [1]),
        # For more than ten seconds, if it is a tenth of a step.
        (0.12, 140, (0.5, 0.5), [1]),
        (0.09, 140, (0.5, 0.5), []),
        # GPUs that always run a kernel, or are not seen.
        (0.04, 40, (1.0, 1.0), [1]),
        (0.04, 40, (), [1]),
        # By less than 6% for less than 2 s.
        (0.055, 24, (1.0, 1.0), []),
        (0.055, 26, (1.0, 1.0), [1]),
        (0.07, 24, (1.0, 1.0), [1]),
        # GPUs of which no sample is of these steps yet.
        (0.2, 40, (math.nan, math.nan), []),
        (0.35, 40, (math.nan, math.nan), [1]),
    ],
)
def test_where_hosts_limit_a_job_one_of_them_may_be_slower_by_chance(
    late_ratio: float, steps: int, running: tuple[float, ...], named: list[int]
) -> None:
    summary = judged(gradients(lags(steps, 2, {1: late_ratio}), buckets=4), running=running)
    assert blamed(summary) == named


def test_without_a_log_the_sizes_of_operations_show_what_a_step_is():
    assert blamed(judged(gradients(lags(40, 4, {1: 0.4})), step_s=None)) == [1]
    assert blamed(judged(gradients(lags(40, 4, {1: 0.005})), step_s=None)) == []


def test_without_a_log_or_sizes_nobody_knows_what_is_lost():
    unknown = gradients(lags(40, 4, {1: 0.1}), size_bytes=np.full(1000, np.nan))

    summary = judged(unknown, step_s=None)

    assert all(rank.gain_ratio is None for rank in summary.nccl.ranks)
    assert blamed(summary) == []


def tensor_pairs(late_in_pair: float, late_replica: float) -> list[CollectiveTable]:
    """Two replicas of two tensor ranks; rank 1 is late in its pair, and its replica for the other one."""
    inside = [
        gradients(lags(40, 2, {1: late}), communicator=f"tp{pair}", ranks=[2 * pair, 2 * pair + 1])
        for pair, late in enumerate((late_in_pair, 0.0))
    ]
    between = [
        gradients(lags(40, 2, {0: late_replica}), communicator=f"dp{place}", ranks=[place, place + 2])
        for place in range(2)
    ]
    return [*inside, *between]


def test_a_rank_that_is_late_for_its_tensor_group_alone_costs_nothing():
    # Its partner waits for it all the time, and the other replica is no faster: it has no peer that is.
    summary = judged(*tensor_pairs(0.005, 0.0), tp=2, dp=2)

    assert summary.nccl.ranks[1].gain_ratio == pytest.approx(0.0)
    assert blamed(summary) == []


def test_of_a_late_replica_the_rank_is_named_that_the_others_of_it_wait_for():
    summary = judged(*tensor_pairs(0.004, 0.1), tp=2, dp=2)

    assert blamed(summary) == [1]
    # The waits in its tensor group add up to as much again, and the step would not gain that.
    assert summary.bottleneck.gain_ratio == pytest.approx(0.1)


def test_without_a_second_replica_nobody_is_named():
    assert blamed(judged(gradients(lags(40, 4, {1: 0.1})), tp=4, dp=1)) == []


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_that_are_late_in_turn_are_nobodys_fault(ranks):
    random = np.random.default_rng(1)
    turns = np.zeros((40, ranks))
    turns[np.arange(40), random.integers(ranks, size=40)] = 0.2 * STEP_S

    assert blamed(judged(gradients(turns))) == []


def test_of_two_equal_culprits_neither_excuses_the_other_in_a_large_group():
    summary = judged(gradients(lags(40, 32, {3: 0.2, 4: 0.21})))

    assert summary.nccl.ranks[4].gain_ratio == pytest.approx(0.21, rel=0.1)


def test_a_pause_in_one_block_of_steps_does_not_blame_who_came_out_of_it_last():
    pause = lags(40, 4, {})
    pause[20, 2] = 100 * STEP_S

    assert blamed(judged(gradients(pause))) == []


def test_the_first_steps_of_a_job_do_not_count():
    starting = gradients(lags(10, 8, {1: 0.5}), sequence=np.arange(10 * BUCKETS))

    # Ten steps are known and three of them are of the start, so there are too few.
    assert judged(starting).nccl.ranks[1].gain_ratio is None
    assert blamed(judged(gradients(lags(20, 8, {1: 0.5}), sequence=np.arange(20 * BUCKETS)))) == [1]


def test_thinned_operations_make_a_gain_smaller_and_never_larger():
    whole = gradients(lags(80, 4, {1: 0.1}))
    one_in_four = slice(0, None, 4)
    thinned = gradients(
        lags(80, 4, {1: 0.1}),
        sequence=whole.sequence[one_in_four],
        durations_s=whole.durations_s[one_in_four],
        size_bytes=whole.size_bytes[one_in_four],
    )

    assert blamed(judged(thinned)) in ([], [1])
    # Most steps lack the one operation that waits for all of the lag.
    seen, all_of_it = (judged(one).nccl.ranks[1].gain_ratio for one in (thinned, whole))
    assert 0.0 < seen < all_of_it == pytest.approx(0.1)


def test_the_fewer_peers_there_are_the_more_must_chance_be_excluded():
    assert [fewest_blocks(ranks) for ranks in (2, 3, 4, 8, 64, 1024)] == [10, 7, 6, 5, 5, 5]


def test_a_communicator_of_one_rank_says_nothing():
    alone = gradients(np.zeros((40, 1)))

    assert judged(alone, dp=1).nccl.ranks[0].gain_ratio in (None, 0.0)
    assert blamed(judged(alone, dp=1)) == []


def test_a_lost_operation_is_no_verdict_unless_nothing_can_be_said_without_it():
    def kinds(*tables: CollectiveTable) -> list[Kind]:
        job = description(world_size=4, dp=4)
        times = [NcclTime(rank=rank, busy_s=6.0, span_s=10.0, lost_operations=1) for rank in range(4)]
        data = job_data(step_table([STEP_S] * 100), description=job, collectives=tables, nccl=times)
        return [one.kind for one in summarise(data, AnalysisSettings()).findings]

    assert Kind.MISSING_TELEMETRY not in kinds(gradients(lags(40, 4, {})))
    assert Kind.MISSING_TELEMETRY in kinds()


def test_a_rank_that_is_seen_for_less_long_than_the_others_is_not_late_for_longer() -> None:
    """One pipeline is late: of its second stage the blocks before are unknown, and of its third all."""
    unknown = [np.nan] * 4
    late = CausedLosses(np.array([[0.0] * 3 + [0.1] * 7, unknown + [0.1] * 6, [np.nan] * 10]))

    assert late.persistence(0.05).tolist() == pytest.approx([0.7, 0.6, np.nan], nan_ok=True)
