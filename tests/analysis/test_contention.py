"""Hosts that wait: named with what for, as the cause of what their ranks are late with."""

from __future__ import annotations

import numpy as np
import pytest
from analysis.jobs import description, job_data, step_table
from analysis.test_lateness import STEP_S, gradients, lags
from hypothesis import given
from hypothesis import strategies as st

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.operations import HostWaitReadings
from perfd.analysis.data.job_data import HostWaitTable
from perfd.analysis.diagnosis import AnalysisSettings, summarise
from perfd.analysis.diagnosis.host_delay_findings import judge_contention
from perfd.analysis.diagnosis.job_analysis import facts_of
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Culprit, Finding, Kind, ranked
from perfd.analysis.steps import gpu_activity, steady_rows
from perfd.analysis.stragglers import host_contention
from perfd.model import RankColumn
from perfd.thresholds import THRESHOLDS
from tests.support.nccl_records import NcclTime


def waits(**columns: list[float]) -> HostWaitTable:
    values = {RankColumn(name): np.array(reported, dtype=float) for name, reported in columns.items()}
    return HostWaitTable(rank=np.arange(len(next(iter(values.values())))), waits=values)


def facts(table: HostWaitTable) -> JobEvidence:
    job = job_data(step_table([1.0] * 20), host_waits=table)
    steady = steady_rows(job.steps, job.events, None)
    activity = gpu_activity(job.gpu, job.steps, steady.rows)
    return facts_of(job, AnalysisSettings(), steady, activity)


def test_the_rank_whose_threads_wait_for_a_cpu_is_named_beside_the_others() -> None:
    table = waits(cpu_wait_ratio=[0.002, 0.004, 0.003, 0.38], cpu_demand_ratio=[0.2, 0.2, 0.2, 1.6])

    finding = judge_contention(facts(table), straggler=None)

    assert finding is not None
    assert finding.culprits == (Culprit(kind="rank", id=3),)
    waiting, wanting = finding.evidence
    assert waiting == (
        "The host of rank 3 is late: its threads wait 38.0% of the time for a CPU (kernel); those of other"
        " ranks 0.3%."
    )
    assert wanting == "Its threads want 1.6 times the CPUs that it may use (kernel)."


def test_where_most_ranks_wait_none_is_named() -> None:
    (found,) = host_contention(waits(cpu_throttled_ratio=[0.5, 0.6, 0.4, 0.0]))

    assert found.of_all
    assert found.ranks == (1, 0, 2)


@pytest.mark.parametrize(("other", "of_all"), [(0.0933, True), (0.07, True), (0.069, False)])
def test_a_rank_that_waits_no_longer_than_others_that_are_just_below_the_threshold_is_not_named(
    other: float, of_all: bool
) -> None:
    (found,) = host_contention(waits(cpu_wait_ratio=[0.105, other]))

    assert found.of_all is of_all
    assert found.ranks == ((0, 1) if of_all else (0,))


@pytest.mark.parametrize(
    ("column", "least"),
    [
        ("cpu_wait_ratio", THRESHOLDS.host_cpu_wait_ratio),
        ("cpu_throttled_ratio", THRESHOLDS.host_throttled_ratio),
        ("io_wait_ratio", THRESHOLDS.host_io_wait_ratio),
        ("major_page_faults_per_s", THRESHOLDS.host_page_faults_per_s),
    ],
)
def test_each_reason_begins_at_its_threshold(column: str, least: float) -> None:
    assert host_contention(waits(**{column: [0.0, 0.999 * least]})) == ()
    (found,) = host_contention(waits(**{column: [0.0, least]}))
    assert found.ranks == (1,)


def test_contention_explains_the_straggler_that_it_causes_and_no_other() -> None:
    def straggler(rank: int) -> Finding:
        return Finding(
            kind=Kind.STRAGGLER, confidence=0.8, culprits=(Culprit(kind="rank", id=rank),), gain_ratio=0.15
        )

    contended = facts(waits(cpu_wait_ratio=[0.0, 0.0, 0.0, 0.4]))

    def roots(late: Finding) -> list[tuple[Kind, list[Kind]]]:
        cause = judge_contention(contended, straggler=late)
        assert cause is not None
        return [(one.kind, [effect.kind for effect in one.effects]) for one in ranked([late, cause])]

    assert roots(straggler(3)) == [(Kind.HOST_CONTENTION, [Kind.STRAGGLER])]
    assert roots(straggler(1))[0] == (Kind.STRAGGLER, [])


@pytest.mark.parametrize(("least", "named"), [(0.11, False), (0.09, True)])
def test_a_rank_that_comes_last_while_hosts_of_all_wait_for_cpus_is_not_blamed(
    least: float, named: bool
) -> None:
    """It costs a fifth of a step: all must wait for half of that."""
    last = job_data(
        step_table([STEP_S] * 100),
        description=description(world_size=4, dp=4),
        collectives=[gradients(lags(20, 4, {0: 0.2}))],
        nccl=[NcclTime(rank=rank, busy_s=6.0, span_s=10.0, lost_operations=0) for rank in range(4)],
        host_waits=waits(cpu_wait_ratio=[0.4, 0.3, least, 0.5]),
    )
    found = summarise(last, AnalysisSettings()).findings

    assert any(one.kind is Kind.STRAGGLER for one in found) is named
    contended = next(one for one in found if one.kind is Kind.HOST_CONTENTION)
    assert contended.culprits == ()


def test_readings_of_ranks_that_fell_silent_or_began_again_do_not_count() -> None:
    readings = HostWaitReadings(Limits(), AggregatorCounters())
    for second in range(0, 30, 5):
        readings.put(7, {RankColumn.CPU_WAIT: 0.5}, read_s=second)
        readings.put(2, {RankColumn.CPU_WAIT: 0.1 if second < 15 else 0.3}, read_s=second + 60.0)
    readings.put(9, {RankColumn.CPU_WAIT: 0.9}, read_s=90.0)

    table = readings.table(90.0)

    assert table is not None
    assert table.rank.tolist() == [2]
    assert table.waits[RankColumn.CPU_WAIT].tolist() == pytest.approx([0.2])
    assert np.isnan(table.waits[RankColumn.IO_WAIT]).all()
    readings.clear()
    assert readings.table(90.0) is None


@given(st.lists(st.floats(0, 1e6) | st.just(float("nan")), min_size=1))
def test_whatever_is_read_names_only_ranks_that_wait(values: list[float]) -> None:
    for one in host_contention(waits(cpu_wait_ratio=values, io_wait_ratio=values)):
        # Who waits nearly as long as the first, too.
        assert all(values[rank] >= THRESHOLDS.host_cpu_wait_ratio * 2 / 3 for rank in one.ranks)
        assert one.value == max(value for value in values if value == value)
