"""Two jobs on the same GPUs, or under one name: no rank is blamed for it."""

from __future__ import annotations

from analysis.jobs import job_data, step_table

from perfd.analysis.diagnosis import AnalysisSettings, summarise
from perfd.analysis.diagnosis.hang_findings import judge_shared_gpus
from perfd.analysis.diagnosis.job_analysis import facts_of
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Culprit, Finding, Kind, computation_leads, ranked
from perfd.analysis.steps import gpu_activity, steady_rows
from perfd.analysis.stragglers import shared_gpus
from perfd.model import Event, EventKind


def doubled(at_s: float, *, ranks: int = 2, same: int = 2) -> Event:
    return Event(
        kind=EventKind.RANKS_DOUBLED,
        time_unix_ns=round(at_s * 1e9),
        message="Two jobs run under this name." if ranks else "Over.",
        values={"ranks": float(ranks), "on_same_gpus": float(same)},
    )


def facts(**more: object) -> JobEvidence:
    job = job_data(step_table([1.0] * 20), **more)
    steady = steady_rows(job.steps, job.events, None)
    activity = gpu_activity(job.gpu, job.steps, steady.rows)
    return facts_of(job, AnalysisSettings(), steady, activity)


def straggler(rank: int) -> Finding:
    culprit = Culprit(kind="rank", id=rank)
    return Finding(
        kind=Kind.STRAGGLER, confidence=0.8, culprits=(culprit,), evidence=["late"], advice="", gain_ratio=0.2
    )


def test_two_jobs_under_one_name_on_the_same_gpus_are_the_headline() -> None:
    job = job_data(step_table([1.0] * 20), events=[doubled(5.0)])
    head, *others = summarise(job, AnalysisSettings()).findings
    assert head.kind is Kind.GPU_CONTENTION
    assert head.evidence[0] == "Two jobs run under this name."
    assert "perfd run" in head.advice
    assert all(culprit.kind != "rank" for one in others for culprit in one.culprits)


def test_on_gpus_of_their_own_they_are_missing_telemetry() -> None:
    job = job_data(step_table([1.0] * 20), events=[doubled(5.0, same=0)])
    kinds = {finding.kind for finding in summarise(job, AnalysisSettings()).findings}
    assert Kind.MISSING_TELEMETRY in kinds
    assert Kind.GPU_CONTENTION not in kinds


def test_once_that_is_over_for_a_minute_ranks_are_judged_again() -> None:
    events = [doubled(5.0), doubled(10.0, ranks=0)]
    table = step_table([1.0] * 20)
    assert shared_gpus(job_data(table, events=events, now_unix_s=40.0)).doubled
    assert not shared_gpus(job_data(table, events=events, now_unix_s=71.0)).doubled
    assert shared_gpus(job_data(table, events=[*events, doubled(70.0)], now_unix_s=171.0)).doubled


def test_a_job_on_the_stragglers_gpu_explains_it() -> None:
    evidence = facts(gpu_sharers={1: ("other",)})
    found = judge_shared_gpus(evidence, straggler=straggler(1))
    assert found is not None
    (root,) = ranked([straggler(1), found])
    assert root.kind is Kind.GPU_CONTENTION
    assert root.culprits == (Culprit(kind="job", id="other"),)
    assert root.evidence == ["The GPU of rank 1 also runs other."]
    assert [effect.kind for effect in root.effects] == [Kind.STRAGGLER]
    assert not computation_leads([root], straggler(1))


def test_a_shared_gpu_alone_costs_nothing_that_is_known() -> None:
    evidence = facts(gpu_sharers={1: ("other",)})
    assert judge_shared_gpus(evidence, straggler=None) is None
    assert judge_shared_gpus(evidence, straggler=straggler(0)) is None
