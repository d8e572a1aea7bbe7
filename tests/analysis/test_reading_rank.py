"""The rank that reads the data for all is named by its role, unless it is seen to work in that time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analysis.jobs import description, job_data, step_table

from perfd.analysis.collectives import NcclSummary, SlowRank, StallingRanks
from perfd.analysis.data.job_data import GpuKey, GpuTable, JobData, LaunchTable
from perfd.analysis.diagnosis import AnalysisSettings
from perfd.analysis.diagnosis.bottleneck import find_bottlenecks
from perfd.analysis.diagnosis.job_analysis import facts_of
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Culprit, Finding, Kind
from perfd.analysis.steps import DataLoading, LongerSteps, StepTime, gpu_activity, steady_rows
from perfd.analysis.stragglers import OwnWork, PeriodicStall, ReadingRank, only_reader, reading_rank
from perfd.analysis.stragglers.reading_rank import computing_more
from perfd.model import GpuColumn, ParallelLayout

BEFORE_S, SINCE_S, SINCE_STEP = 0.4, 0.5, 13
GAIN = 1 - BEFORE_S / SINCE_S
TIMES_S = [BEFORE_S] * 12 + [SINCE_S] * 8
"""Of which 4 s are since the change."""
TENSOR_PAIR = ParallelLayout(world_size=2, tp=2, pp=1, dp=1)
ROLE, RANK = Culprit(kind="tensor rank", id=0), Culprit(kind="rank", id=0)
UNKNOWN = float("nan")


def launches(
    asleep: list[float],
    *,
    workers: tuple[float, float] = (6, UNKNOWN),
    busy: float = 0.01,
    age_s: float = 0.0,
) -> LaunchTable:
    """What rank 0 sleeps over windows of 2, 3.5, 6 and 60 s; rank 1 is never seen asleep."""
    spans_s = np.array([2.0, 3.5, 6.0, 60.0])
    return LaunchTable(
        rank=np.arange(2),
        span_s=np.stack([spans_s] * 2, axis=1),
        asleep_ratio=np.stack([np.array(asleep), np.zeros(4)], axis=1),
        loader_busy_ratio=np.full((4, 2), busy),
        loader_workers=np.array(workers),
        age_s=np.full(2, age_s),
    )


AWAKE, WAITING = launches([0.01] * 4), launches([0.2, 0.2, 0.14, 0.02])


def job(table: LaunchTable | None) -> JobData:
    steps = step_table(TIMES_S)
    return job_data(
        steps,
        description=description(world_size=2, tp=2, pp=1, dp=1),
        launches=table,
        now_unix_s=float(steps.time_unix_s[-1]),
    )


def slow(rank: int = 0) -> SlowRank:
    return SlowRank(
        rank=rank,
        role=f"tensor rank {rank}",
        since_step=SINCE_STEP,
        before_s=BEFORE_S,
        since_s=SINCE_S,
        longer_for_s=8 * SINCE_S,
        gain_ratio=GAIN,
    )


def longer(computing_ratio: float, *, since_step: int = SINCE_STEP) -> LongerSteps:
    """Of rank 0; the other one waits in NCCL."""
    return LongerSteps(
        since_step=since_step,
        before_s=BEFORE_S,
        since_s=SINCE_S,
        longer_for_s=8 * SINCE_S,
        lines=8,
        ranks=np.arange(2),
        computing_ratio=np.array([computing_ratio, 0.1]),
        running_ratio=np.ones(2),
        active_before_ratio=np.full(2, 0.9),
    )


def reading(table: LaunchTable | None, seen: LongerSteps | None = None, rank: int = 0) -> ReadingRank | None:
    return reading_rank(slow(rank), job(table), TENSOR_PAIR, seen)


def facts(table: LaunchTable | None, *, rank: int = 0, parallel: ParallelLayout = TENSOR_PAIR) -> JobEvidence:
    data = job(table)
    steady = steady_rows(data.steps, (), None)
    activity = gpu_activity(data.gpu, data.steps, steady.rows)
    return replace(
        facts_of(data, AnalysisSettings(), steady, activity),
        nccl=NcclSummary(slow_since=slow(rank), source="nccl plugin"),
        only_reader=only_reader(parallel, table),
        reading=reading_rank(slow(rank), data, parallel, None),
    )


def headline(seen: JobEvidence) -> Finding:
    return find_bottlenecks(seen)[0]


@pytest.mark.parametrize(
    "table", [None, WAITING, launches([0.01, 0.1, 0.14, 0.02])], ids=["unknown", "asleep", "once"]
)
def test_the_reader_that_may_wait_for_data_is_named_by_its_role_and_not_blamed(
    table: LaunchTable | None,
) -> None:
    found = headline(facts(table))

    assert (found.kind, found.culprits, found.ranks) == (Kind.LATE_HOSTS, (ROLE,), (0,))
    assert found.confidence == 0.6
    assert found.gain_ratio == pytest.approx(GAIN)
    assert found.longer_for_s == pytest.approx(8 * SINCE_S)
    assert any("by design" in sentence for sentence in found.evidence)
    assert any("sleep 20.0%" in sentence for sentence in found.evidence) == (table is WAITING)


def test_busy_workers_and_a_host_that_sleeps_show_that_loading_is_slow() -> None:
    found = headline(facts(launches([0.2, 0.2, 0.14, 0.02], busy=0.95)))

    assert (found.kind, found.culprits, found.confidence) == (Kind.DATA_LOADING, (ROLE,), 0.8)
    assert headline(facts(launches([0.01, 0.1, 0.14, 0.02], busy=0.95))).kind is Kind.LATE_HOSTS


def test_a_reader_whose_host_never_sleeps_does_not_wait_for_its_workers_and_is_slow_itself() -> None:
    found = headline(facts(AWAKE))

    assert (found.kind, found.culprits) == (Kind.STRAGGLER, (RANK,))
    assert "do not sleep" in found.evidence[-1]


@pytest.mark.parametrize(
    "table",
    [
        launches([0.01] * 4, workers=(UNKNOWN, UNKNOWN)),
        launches([0.01] * 4, workers=(0, UNKNOWN)),
        launches([UNKNOWN] * 4),
        launches([0.01, 0.01, 0.1, 0.1]),
        launches([0.01] * 4, age_s=3.0),
    ],
    ids=["workers unknown", "no workers", "sleep unknown", "slept earlier since the change", "read long ago"],
)
def test_less_than_that_does_not_show_that_a_host_was_busy(table: LaunchTable) -> None:
    found = reading(table)

    assert found is not None
    assert found.own_work is None


def test_more_work_of_its_gpu_since_then_is_its_own() -> None:
    def own_work(seen: LongerSteps) -> OwnWork | None:
        found = reading(WAITING, seen)
        return found.own_work if found else None

    assert own_work(longer(1.0)) is OwnWork.GPU
    assert own_work(longer(0.1)) is None
    # Of an earlier change, and unknown.
    assert own_work(longer(1.0, since_step=SINCE_STEP - 8)) is None
    assert own_work(longer(UNKNOWN)) is None


@pytest.mark.parametrize(
    ("layout", "reader"),
    [
        (TENSOR_PAIR, 0),
        (ParallelLayout(world_size=4, tp=2, dp=2), None),
        (ParallelLayout(world_size=4, tp=2, pp=2), None),
        (ParallelLayout(world_size=2, tp=1, dp=2), None),
        (ParallelLayout(), None),
    ],
)
def test_one_rank_reads_for_all_only_where_all_are_one_tensor_group(
    layout: ParallelLayout, reader: int | None
) -> None:
    assert only_reader(layout, None) == reader


def test_workers_of_a_loader_beside_other_ranks_show_that_these_read_too() -> None:
    each = launches([0.2] * 4, workers=(6, 1))

    assert only_reader(TENSOR_PAIR, each) is None
    assert only_reader(TENSOR_PAIR, launches([0.2] * 4, workers=(6, 0))) == 0
    assert headline(facts(each)).culprits == (RANK,)


def test_another_rank_than_the_reader_is_still_named() -> None:
    found = headline(facts(WAITING, rank=1))

    assert (found.kind, found.culprits) == (Kind.STRAGGLER, (Culprit(kind="rank", id=1),))


def test_timers_that_show_the_input_leave_nothing_to_add() -> None:
    data = DataLoading(
        share_ratio=0.2, least_ratio=0.01, reading_tensor_rank=0, source="timers: batch-generator"
    )
    for busy in (0.01, 0.95):
        table = launches([0.2, 0.2, 0.14, 0.02], busy=busy)
        (found,) = [one for one in find_bottlenecks(replace(facts(table), data=data)) if one.culprits]
        assert (found.kind, found.culprits, found.effects) == (Kind.DATA_LOADING, (ROLE,), ())


def test_a_reader_that_stalls_at_intervals_is_named_by_its_role_too() -> None:
    stalls = StallingRanks(
        ranks=(0,), node=None, period_steps=5, stalls=4, usual_s=0.4, stalled_s=1.0, gain_ratio=0.2
    )
    stall = PeriodicStall(
        period_s=2.6, period_steps=5, usual_s=0.4, stall_s=0.6, cost_ratio=0.2, stalls=4, rank=0
    )
    seen = replace(facts(None), nccl=NcclSummary(stalling=stalls, source="nccl plugin"), stall=stall)

    for known in (stall, None):
        found = find_bottlenecks(replace(seen, stall=known))
        assert ROLE in found[0].culprits
        lasted_s = {one.kind: one.longer_for_s for one in found}
        assert lasted_s[Kind.LATE_HOSTS] == pytest.approx(4 * 2.6)
        assert all(culprit.kind != "rank" for one in found for culprit in one.culprits)
    assert RANK in find_bottlenecks(replace(seen, only_reader=None))[0].culprits


@pytest.mark.parametrize("node", [None, "n2"])
def test_ranks_that_stall_together_are_named_or_their_node_is(node: str | None) -> None:
    stalls = StallingRanks(
        ranks=(1, 3), node=node, period_steps=5, stalls=4, usual_s=0.4, stalled_s=1.0, gain_ratio=0.1
    )
    stall = PeriodicStall(period_s=2.6, period_steps=5, usual_s=0.4, stall_s=0.6, cost_ratio=0.3, stalls=4)
    seen = replace(facts(None), nccl=NcclSummary(stalling=stalls, source="nccl plugin"), stall=stall)

    (found,) = [one for one in find_bottlenecks(seen) if one.kind in {Kind.STRAGGLER, Kind.PERIODIC_STALL}]

    ranks = tuple(Culprit(kind="rank", id=rank) for rank in (1, 3))
    assert found.culprits == (ranks if node is None else (Culprit(kind="node", id="n2"),))
    assert list(found.culprit_ranks) == [1, 3]
    assert "Ranks 1, 3 do not wait for each other." in found.evidence


@pytest.mark.parametrize(("rank", "findings"), [(1, 1), (0, 2), (None, 2)])
def test_the_stalls_of_a_rank_are_one_finding_with_their_period(rank: int | None, findings: int) -> None:
    """Stalls in the log are a separate finding only if NCCL does not show that the same rank stalls."""
    stalls = StallingRanks(
        ranks=(1,), node=None, period_steps=5, stalls=4, usual_s=0.4, stalled_s=1.0, gain_ratio=0.1
    )
    stall = PeriodicStall(
        period_s=2.6, period_steps=5, usual_s=0.4, stall_s=0.6, cost_ratio=0.3, stalls=4, rank=rank
    )
    seen = replace(facts(None), nccl=NcclSummary(stalling=stalls, source="nccl plugin"), stall=stall)

    found = [one for one in find_bottlenecks(seen) if one.kind in {Kind.STRAGGLER, Kind.PERIODIC_STALL}]

    assert len(found) == findings
    (named,) = [one for one in found if one.kind is Kind.STRAGGLER]
    assert named.culprits == (Culprit(kind="rank", id=1),)
    assert named.evidence[0] == "Every 5 steps, one takes 1000.0 ms instead of 400.0 ms."
    assert "garbage collection" in named.advice


def test_without_stalls_a_step_takes_what_it_usually_does() -> None:
    """Of the mean step: the median is one without a stall, and takes as long already."""
    stall = PeriodicStall(
        period_s=2.6, period_steps=5, usual_s=0.4, stall_s=0.6, cost_ratio=0.2, stalls=4, rank=None
    )
    known = replace(facts(None), step_time=StepTime(median=0.42), stall=stall)

    (named,) = [one for one in find_bottlenecks(known) if one.kind is Kind.PERIODIC_STALL]
    (said,) = named.evidence
    assert said.startswith("Every 5 steps, which is every 2600.0 ms, a step takes 600.0 ms longer than the")
    assert said.endswith("usual 400.0 ms: 4 times so far, 20.0% of the time (log).")
    assert named.advice.endswith("At best 400.0 ms per step on average instead of 500.0 ms.")

    by_time = replace(known, stall=replace(stall, period_steps=None))
    (named,) = [one for one in find_bottlenecks(by_time) if one.kind is Kind.PERIODIC_STALL]
    assert named.evidence[0].startswith("Every 2600.0 ms a step takes 600.0 ms longer")


def test_more_work_is_seen_in_the_newest_samples_that_are_known() -> None:
    def ranks(active: list[list[float]]) -> frozenset[int]:
        samples = np.array(active, np.float32)
        keys = tuple(GpuKey(node="n", gpu=str(rank), rank=rank) for rank in range(samples.shape[1]))
        times = np.arange(float(len(samples)))
        return computing_more(GpuTable(time_unix_s=times, gpus=keys, metrics={GpuColumn.SM_ACTIVE: samples}))

    lately = [[0.9, 0.5, 0.5], [0.5, 0.5, 0.9], [0.5, 0.5, 0.9], [0.5, 0.5, 0.9]]
    assert ranks(lately) == {2}
    # One whose newest samples are missing has its latest ones.
    assert ranks([*lately, [0.5, 0.5, np.nan]]) == {2}
    assert ranks(lately[:2]) == frozenset()
