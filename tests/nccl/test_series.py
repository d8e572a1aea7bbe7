"""What NCCL's evidence is exported as: bounded, and in the catalog."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis.jobs import job_data, step_table
from analysis.test_late_hosts import job as late_job
from analysis.test_nccl import DP4, table

from perfd.aggregator.live_facts import LiveFacts
from perfd.aggregator.series.job_series import derived_values
from perfd.analysis.diagnosis import AnalysisSettings, summarise
from perfd.analysis.findings import Culprit, Finding, Kind
from perfd.metrics.catalog import METRICS
from perfd.model import JobDescription, ParallelLayout
from tests.support.nccl_records import NcclTime

FACTS = LiveFacts(
    labels={"perfd_job": "job"},
    attempt=1,
    nodes=1,
    ranks=4,
    log_silent_s=None,
    log_lines=None,
    unrecognized_lines=None,
    step_time_change=None,
)


def exported(ranks: int = 4, late: int = 2, description: JobDescription = DP4) -> dict:
    arrivals = [0.02 if rank == late else 0.0 for rank in range(ranks)]
    tables = [table(list(range(ranks)), arrivals, best_s_per_byte=0.004 / 1e9, best_size_bytes=1e9)]
    data = job_data(
        step_table([0.1] * 200),
        description=description,
        collectives=tables,
        nccl=[NcclTime(rank=r, busy_s=3, span_s=10, lost_operations=0) for r in range(ranks)],
    )
    values = derived_values(data, summarise(data, AnalysisSettings()), FACTS)
    return {(name, *sorted(labels.items())): value for name, labels, value in values}


@pytest.mark.parametrize("kind", ["node", "rank"])
def test_one_rank_stands_for_a_slow_node(kind):
    culprit = Culprit(kind=kind, id="n1" if kind == "node" else 3)
    slow = Finding(kind=Kind.STRAGGLER, confidence=0.8, culprits=(culprit,), ranks=(2, 3))
    data = job_data(step_table([0.1] * 200), description=DP4)
    summary = replace(summarise(data, AnalysisSettings()), findings=[slow])

    series = derived_values(data, summary, FACTS)

    named = [labels["rank"] for name, labels, _ in series if name == "perfd_culprit_confidence_ratio"]
    assert named == ["2" if kind == "node" else "3"]
    assert list(slow.culprit_ranks) == ([2, 3] if kind == "node" else [3])


def test_ranks_groups_and_culprits_are_series():
    series = exported()

    def of(name: str, **labels: str) -> float:
        return series[(name, *sorted({"perfd_job": "job", **labels}.items()))]

    assert of("perfd_nccl_share_ratio") == pytest.approx(0.3)
    assert of("perfd_nccl_wait_ratio") + of("perfd_nccl_transfer_ratio") == pytest.approx(0.3)
    assert of("perfd_nccl_missing_ranks") == 0
    assert of("perfd_rank_gain_ratio", rank="2") == pytest.approx(0.2)
    assert of("perfd_rank_wait_ratio", rank="0") == pytest.approx(0.2)
    assert of("perfd_rank_slowdown_ratio", rank="2") == pytest.approx(1 / 0.8)
    assert of("perfd_culprit_confidence_ratio", rank="2", kind="straggler") == 0.8
    group = {"group": "world", "operation": "AllReduce"}
    assert of("perfd_nccl_bus_bytes_per_second", **group) == pytest.approx(1.5e11)
    assert of("perfd_nccl_group_share_ratio", **group) == pytest.approx(0.25)
    assert of("perfd_nccl_transfer_seconds", **group) == pytest.approx(0.01)
    assert of("perfd_link_slowdown_ratio", **group, communicator="ab") == pytest.approx(2.5)
    assert {name for name, *_ in series} <= METRICS.keys()


def test_a_finding_that_began_with_longer_steps_has_their_age() -> None:
    data = late_job()

    values = derived_values(data, summarise(data, AnalysisSettings()), FACTS)

    lasted = [(labels, value) for name, labels, value in values if name == "perfd_finding_longer_seconds"]
    assert lasted == [({"perfd_job": "job", "kind": "late_hosts"}, pytest.approx(4.8))]
    assert {name for name, *_ in values} <= METRICS.keys()
    gains = [
        value
        for name, labels, value in values
        if name == "perfd_finding_gain_ratio" and "late_hosts" in labels.values()
    ]
    assert gains == [pytest.approx(1 / 3)]
    assert not any(name == "perfd_finding_longer_seconds" for name, *_ in exported())


def test_of_very_many_ranks_only_those_at_either_end_are_series():
    ranks = 4096
    layout = ParallelLayout(world_size=ranks, tp=1, cp=1, pp=1, dp=ranks)
    job = JobDescription(job="job", framework="megatron-lm", parallel=layout)

    series = exported(ranks, late=3000, description=job)

    reported = [dict(labels)["rank"] for name, *labels in series if name == "perfd_rank_gain_ratio"]
    assert len(reported) <= 1024
    assert "3000" in reported
