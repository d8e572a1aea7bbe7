"""NCCL's evidence of real jobs is never whole: what then, from the wire's records to the verdict."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from perfd.aggregator.jobs import RecordSource
from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.state.derived_numbers import job_data
from perfd.aggregator.state.fleet import Fleet
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.analysis.findings import Kind
from perfd.model import (
    CollectiveProgress,
    CollectiveTimes,
    Event,
    EventKind,
    JobDescription,
    ParallelLayout,
    Record,
    SampleTable,
    Scope,
    TimingSource,
    TrainingStep,
)

SECOND = 1_000_000_000
RANKS = 4
LATE = 2


class Cluster:
    """A job of four data-parallel ranks, one a node, whose records an aggregator's state takes in."""

    def __init__(self) -> None:
        self.fleet = Fleet(Limits(), AggregatorCounters())
        self.skew_s = dict.fromkeys(range(RANKS), 0.0)
        self.now_s = 1000.0
        self.say(0, self.description(dp=4))

    def description(self, **layout: int) -> JobDescription:
        sizes = {"world_size": RANKS, "tp": 1, "pp": 1, "cp": 1, "dp": 4} | layout
        return JobDescription(job="j", framework="megatron-lm", parallel=ParallelLayout(**sizes))

    def say(self, rank: int, *records: Record) -> None:
        node = f"n{rank}"
        sent_s = self.now_s + self.skew_s[rank]
        self.fleet.apply(
            records, RecordSource(agent_id=node, node=node, sent_unix_s=sent_s, now_s=self.now_s)
        )

    def second(
        self, second: int, *, communicator: str = "ab", silent: tuple[int, ...] = (), **changes
    ) -> None:
        """A second of ten all-reduces, for which rank 2 comes 20 ms late."""
        self.now_s += 1
        for rank in range(RANKS):
            if rank not in silent:
                self.say(rank, *self.records(rank, second, communicator, **changes))

    def records(self, rank: int, second: int, communicator: str, **changes) -> list[Record]:
        clock_ns = round((self.now_s + self.skew_s[rank]) * SECOND)
        duration_ns = 10_000_000 if rank == LATE else 30_000_000
        sequences = [10 * second + n for n in range(10)]
        times = CollectiveTimes(
            job="j",
            rank=rank,
            communicator=communicator,
            communicator_rank=rank,
            communicator_size=RANKS,
            operation="AllReduce",
            timing=TimingSource.GPU,
            start_unix_ns=clock_ns - SECOND,
            end_unix_ns=clock_ns,
            count=10,
            total_s=duration_ns / 1e8,
            min_s=duration_ns / 1e9,
            max_s=duration_ns / 1e9,
            sequences=sequences,
            durations_ns=[duration_ns] * 10,
            sizes_bytes=[1 << 20] * 10,
        )
        counters = SampleTable(
            scope=Scope.RANK,
            times_unix_ns=[clock_ns],
            entities=[f"j/{rank}"],
            columns={
                "nccl_busy_s": [(second + 1) * duration_ns / 1e8],
                "nccl_operations": [10.0 * second + 10],
                "nccl_lost_operations": [0.0],
            },
        )
        return [replace(times, **changes), counters]

    def step(self, step: int, took_s: float = 0.1) -> None:
        self.say(
            0, TrainingStep(job="j", step=step, step_time_s=took_s, time_unix_ns=round(self.now_s * SECOND))
        )

    def summary(self) -> JobSummary:
        job = self.fleet.jobs["j"]
        data = job_data(self.fleet, job, now_unix_s=self.now_s, now_s=self.now_s)
        return summarise(data, AnalysisSettings())


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def blamed(summary: JobSummary) -> list[int | str]:
    return [
        culprit.id
        for finding in summary.findings
        if finding.kind is Kind.STRAGGLER
        for culprit in finding.culprits
    ]


def test_a_late_rank_is_named_out_of_the_records_of_four_nodes(cluster: Cluster):
    for second in range(10):
        cluster.second(second)

    assert blamed(cluster.summary()) == [LATE]


def test_clocks_that_disagree_by_seconds_change_nothing(cluster: Cluster):
    cluster.skew_s = {0: -7.0, 1: 3.5, 2: 12.0, 3: 0.0}
    for second in range(10):
        cluster.second(second)

    summary = cluster.summary()
    assert blamed(summary) == [LATE]
    assert summary.nccl.missing_ranks == ()
    assert summary.nccl.wait_ratio == pytest.approx(0.15, rel=0.05)


def test_clocks_that_disagree_by_a_quarter_of_an_hour_hide_nobody(cluster: Cluster):
    cluster.skew_s = {0: 1000.0, 1: 0.0, 2: -7200.0, 3: 0.0}
    for second in range(10):
        cluster.second(second)

    summary = cluster.summary()
    assert blamed(summary) == [LATE]
    assert summary.nccl.missing_ranks == ()
    assert len(summary.nccl.groups) == 1


def test_a_rank_that_never_reports_leaves_all_unblamed_and_is_named(cluster: Cluster):
    for second in range(10):
        cluster.second(second, silent=(LATE,))

    summary = cluster.summary()
    assert blamed(summary) == []
    assert summary.nccl.missing_ranks == (LATE,)
    assert any(finding.kind is Kind.MISSING_TELEMETRY for finding in summary.findings)


def test_that_nccl_is_busy_is_no_verdict_while_the_one_that_it_waits_for_may_be_missing(cluster: Cluster):
    for second in range(10):
        cluster.second(second, silent=(LATE,))

    summary = cluster.summary()
    assert summary.bottleneck.kind is Kind.UNKNOWN
    (busy,) = (one for one in summary.findings if one.kind is Kind.COMMUNICATION)
    assert (busy.confidence, busy.gain_ratio) == (0.4, None)
    assert " ".join(busy.evidence) == (
        "NCCL's kernels run 30.0% of the time (nccl plugin: kernels on the GPU). How much of that moves"
        " data, and how much waits for a slow rank, is unknown: no timings came from rank 2."
    )
    assert "overlap-grad-reduce" not in busy.advice


def test_a_rank_that_stops_speaking_is_missing_after_half_a_minute(cluster: Cluster):
    for second in range(10):
        cluster.second(second)
    for second in range(10, 50):
        cluster.second(second, silent=(1,))

    summary = cluster.summary()
    assert summary.nccl.missing_ranks == (1,)
    assert blamed(summary) == []


def test_gaps_in_sequences_cost_the_operations_in_them_and_nothing_else(cluster: Cluster):
    for second in range(10):
        # Of one rank every other second's operations never came.
        cluster.second(second, silent=(0,) if second % 2 else ())

    (stack,) = cluster.fleet.jobs["j"].communication.collectives.stacks()
    assert np.isnan(stack.durations_s[0, :, 0]).sum() == 50
    assert blamed(cluster.summary()) == [LATE]


def test_between_samples_nothing_is_taken_for_one_long_step(cluster: Cluster):
    for second in range(100):
        cluster.now_s += 1
        for rank in range(RANKS):
            times, counters = cluster.records(rank, second, "ab")
            in_sample = second % 50 < 10
            cluster.say(rank, *([times, counters] if in_sample else [counters]))

    summary = cluster.summary()
    (stack,) = cluster.fleet.jobs["j"].communication.collectives.stacks()
    assert stack.sequence[0, : stack.lengths[0]].tolist() == list(range(500, 600))
    assert stack.operations_per_s.tolist() == pytest.approx([10.0])
    assert summary.nccl.share_ratio == pytest.approx(0.25, rel=0.05)
    assert summary.nccl.kinds[0].kernel_ratio == pytest.approx(0.25, rel=0.05)
    assert blamed(summary) == [LATE]


def test_a_restart_begins_anew_though_communicators_of_before_are_remembered_nowhere(cluster: Cluster):
    for second in range(10):
        cluster.second(second)
        cluster.step(second + 1)
    cluster.step(5, took_s=0.15)

    assert cluster.fleet.jobs["j"].communication.collectives.stacks() == []
    assert cluster.summary().nccl.ranks == ()
    for second in range(10):
        cluster.second(second, communicator="cd")
    assert [group.communicator for group in cluster.summary().nccl.groups] == ["cd"]
    assert blamed(cluster.summary()) == [LATE]


def test_a_process_that_was_replaced_starts_its_counters_afresh(cluster: Cluster):
    for second in range(20):
        cluster.second(second)
    for second in range(3):
        cluster.second(second, communicator="cd")

    assert all(rank.busy_ratio is None or 0 <= rank.busy_ratio <= 1 for rank in cluster.summary().nccl.ranks)
    times = cluster.fleet.jobs["j"].communication.nccl.table()
    assert len(times)
    assert times.span_s == pytest.approx(2.0)


def test_another_layout_is_another_job(cluster: Cluster):
    for second in range(10):
        cluster.second(second)

    cluster.say(0, cluster.description(dp=2, pp=2))

    summary = cluster.summary()
    assert summary.nccl.groups == ()
    assert blamed(summary) == []
    for second in range(10):
        cluster.second(second, communicator="ef")
    # In two stages the last one of all is late by design, so nobody is blamed for it.
    assert blamed(cluster.summary()) == []


def test_ranks_timed_by_different_clocks_are_not_matched(cluster: Cluster):
    for second in range(10):
        cluster.now_s += 1
        for rank in range(RANKS):
            timing = TimingSource.PROXY if rank == LATE else TimingSource.GPU
            cluster.say(rank, *cluster.records(rank, second, "ab", timing=timing))

    summary = cluster.summary()
    assert summary.nccl.groups == ()
    assert blamed(summary) == []


def test_an_nccl_that_shows_no_time_on_the_gpu_leaves_the_share_open(cluster: Cluster):
    for second in range(10):
        cluster.now_s += 1
        for rank in range(RANKS):
            times, counters = cluster.records(rank, second, "ab")
            if rank == 1:
                counters = replace(counters, columns=counters.columns | {"nccl_busy_s": [math.nan]})
            cluster.say(rank, times, counters)

    summary = cluster.summary()
    assert summary.nccl.share_ratio is None
    assert summary.nccl.missing_ranks == ()
    assert summary.nccl.untimed_ranks == (1,)
    (missing,) = (one for one in summary.findings if one.kind is Kind.MISSING_TELEMETRY)
    assert missing.evidence[0].startswith("Rank 1 reported no times on the GPU although others did")
    assert blamed(summary) == [LATE]


def test_why_no_rank_has_times_is_said(cluster: Cluster):
    for second in range(10):
        cluster.now_s += 1
        for rank in range(RANKS):
            _, counters = cluster.records(rank, second, "ab")
            wrong = Event(
                kind=EventKind.NCCL_TIMES_WRONG, time_unix_ns=1, message="They overlap.", job="j", rank=rank
            )
            counters = replace(counters, columns=counters.columns | {"nccl_busy_s": [math.nan]})
            cluster.say(rank, counters, *([wrong] if second == 5 else []))

    summary = cluster.summary()
    assert summary.communication.share_ratio is None
    (missing,) = (one for one in summary.findings if one.kind is Kind.MISSING_TELEMETRY)
    assert missing.evidence == ["Ranks 0, 1, 2, 3: They overlap."]
    assert summary.bottleneck.kind is not Kind.MISSING_TELEMETRY


def test_a_communicator_without_times_leaves_the_others_theirs(cluster: Cluster):
    for second in range(30):
        cluster.now_s += 1
        for rank in range(RANKS):
            times, counters = cluster.records(rank, second, "ab")
            gathers = replace(times, communicator="cd", operation="AllGather")
            wrong = Event(
                kind=EventKind.NCCL_TIMES_WRONG, time_unix_ns=1, message="They overlap.", job="j", rank=rank
            )
            if second >= 10:
                # From here on the agent has no time of `cd`, hence none of all kernels together.
                counters = replace(counters, columns=counters.columns | {"nccl_busy_s": [math.nan]})
            cluster.say(rank, times, counters, *([gathers] if second < 10 else []))
            if second == 10:
                cluster.say(rank, wrong)

    summary = cluster.summary()
    assert summary.communication.share_ratio is None
    (known,) = summary.communication.dimensions
    assert known.share_ratio == pytest.approx((0.1 + 3 * 0.3) / 4)
    (missing,) = (one for one in summary.findings if one.kind is Kind.MISSING_TELEMETRY)
    assert missing.evidence[-1] == "Communication is known of dp 25.0% of a step; of the rest it is unknown."
    assert blamed(summary) == [LATE]


def test_a_dimension_of_which_some_rank_has_no_times_is_unknown(cluster: Cluster):
    """Ranks 2 and 3 are timed, on a communicator of their own; of ranks 0 and 1 nothing is known."""
    for second in range(20):
        cluster.now_s += 1
        for rank in range(RANKS):
            times, counters = cluster.records(rank, second, "ab")
            counters = replace(counters, columns=counters.columns | {"nccl_busy_s": [math.nan]})
            pair = replace(times, communicator_rank=rank - 2, communicator_size=2)
            cluster.say(rank, counters, *([pair] if rank >= 2 else []))

    assert cluster.summary().communication.dimensions == ()


def test_progress_of_a_rank_is_its_newest_word(cluster: Cluster):
    def said(enqueued: int) -> CollectiveProgress:
        return CollectiveProgress(
            job="j", rank=1, communicator="0", enqueued=enqueued, time_unix_ns=1, source="flight_recorder"
        )

    cluster.say(1, said(4))
    cluster.say(1, said(5))

    (newest,) = cluster.fleet.jobs["j"].communication.progress.newest()
    assert newest.enqueued == 5
