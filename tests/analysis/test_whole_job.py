"""The headline of a job that is over: what cost it most of its time, a fault or what limited it all along."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfd.analysis.findings import Culprit, FaultPeriod, Finding, Kind, of_whole_job

BEGAN_UNIX_S = 1_764_000_000.0
COMPUTES = Finding(kind=Kind.COMPUTE_BOUND, confidence=0.4)
UNKNOWN = Finding(kind=Kind.UNKNOWN, confidence=0.0)
UNEVEN = Finding(
    kind=Kind.PIPELINE_IMBALANCE, confidence=0.6, gain_ratio=0.2, culprits=(Culprit(kind="stage", id=2),)
)
BUBBLE = Finding(kind=Kind.PIPELINE_BUBBLE, confidence=0.8, gain_ratio=0.2)
TELEMETRY = Finding(kind=Kind.MISSING_TELEMETRY, confidence=0.9)
JOB_S = 100.0


def fault(
    rank: int | None, lost_s: float | None, *, kind: Kind = Kind.STRAGGLER, at_s: float = 20.0
) -> FaultPeriod:
    return FaultPeriod(
        kind=kind,
        culprits=() if rank is None else (Culprit(kind="rank", id=rank),),
        began_unix_s=BEGAN_UNIX_S + at_s,
        seen_unix_s=BEGAN_UNIX_S + at_s + 10,
        first_step=20,
        last_step=30,
        gain_ratio=None if lost_s is None else lost_s / 10,
        lost_s=lost_s,
        confidence=0.8,
        evidence=("All wait for it.",),
        advice="Look at its host.",
    )


def whole(
    found: list[Finding], *faults: FaultPeriod, steady: tuple[Finding, ...] = (), job_s: float = JOB_S
) -> list[Finding]:
    return list(of_whole_job(found, steady, faults, job_s=job_s))


def names(findings: list[Finding]) -> list[tuple[Kind, str]]:
    return [(one.kind, one.culprit_names) for one in findings]


def test_what_another_round_had_to_confirm_is_not_what_cost_a_job_most():
    """As in recording random132: loaders became slow three steps before it ended."""
    late = Finding(kind=Kind.LATE_HOSTS, confidence=0.6, gain_ratio=0.46, since_step=17, tentative=True)
    assert whole([late], steady=(BUBBLE,)) == [BUBBLE]
    assert whole([late, UNEVEN]) == [UNEVEN]
    assert whole([replace(late, tentative=False)], steady=(BUBBLE,))[0].kind is Kind.LATE_HOSTS
    # Where nothing else is known, it is said.
    assert whole([late]) == [late]


def test_a_fault_that_cost_most_is_the_headline_with_its_time_its_share_and_its_evidence():
    first, *others = whole([COMPUTES], fault(3, 6.0))
    assert (first.kind, first.culprit_names, first.gain_ratio) == (
        Kind.STRAGGLER,
        "rank 3",
        pytest.approx(0.06),
    )
    cost, evidence = first.evidence
    assert cost == (
        "It cost 6.0% of the time in which the job made steps, 6000.0 ms (2025-11-24 16:00:20 UTC to"
        " 2025-11-24 16:00:30 UTC, 10.0 s, steps 20 to 30: 60.0% of a step)."
    )
    assert evidence == "All wait for it."
    assert first.advice == "Look at its host."
    assert not others


def test_what_limits_the_job_all_along_is_the_headline_if_it_costs_more_than_all_faults():
    assert names(whole([BUBBLE], fault(3, 6.0)))[0] == (Kind.PIPELINE_BUBBLE, "")
    assert names(whole([BUBBLE], fault(3, 9.0), fault(1, 13.0, at_s=60.0))) == [
        (Kind.STRAGGLER, "rank 1"),
        (Kind.PIPELINE_BUBBLE, ""),
        (Kind.STRAGGLER, "rank 3"),
    ]


def test_periods_of_one_rank_are_one_cause_and_each_is_said():
    (first,) = whole([COMPUTES], fault(3, 4.0), fault(3, 2.0, at_s=60.0))
    assert first.gain_ratio == pytest.approx(0.06)
    assert first.evidence[0].count("10.0 s, steps 20 to 30") == 2


def test_a_fault_that_cost_next_to_nothing_is_in_the_list_only():
    assert names(whole([COMPUTES], fault(3, 1.0))) == [(Kind.COMPUTE_BOUND, "")]
    assert names(whole([COMPUTES], fault(3, None))) == [(Kind.COMPUTE_BOUND, "")]


def test_the_newest_operations_may_be_those_of_a_fault_so_rounds_outside_of_it_say_what_limits_the_job():
    slow = Finding(
        kind=Kind.STRAGGLER, confidence=0.8, gain_ratio=0.4, culprits=(Culprit(kind="rank", id=3),)
    )
    found = [UNEVEN, slow, TELEMETRY]
    assert names(whole(found, fault(3, 3.0), steady=(BUBBLE,))) == [
        (Kind.PIPELINE_BUBBLE, ""),
        (Kind.STRAGGLER, "rank 3"),
        (Kind.MISSING_TELEMETRY, ""),
    ]
    # Without rounds that are long enough, all that is known remains, but for the fault itself.
    assert names(whole(found, fault(3, 1.0))) == [(UNEVEN.kind, "stage 2"), (Kind.MISSING_TELEMETRY, "")]


def test_of_what_both_found_the_numbers_are_those_of_the_whole_job():
    newest = Finding(kind=Kind.PIPELINE_BUBBLE, confidence=0.8, gain_ratio=0.3)
    (first, _) = whole([BUBBLE], fault(3, 3.0), steady=(newest,))
    assert first is BUBBLE


def test_a_cause_that_rounds_found_stays_where_none_is_known_at_the_end():
    loading = Finding(kind=Kind.DATA_LOADING, confidence=0.6, gain_ratio=0.4)
    assert names(whole([UNKNOWN], steady=(loading,))) == [(Kind.DATA_LOADING, "")]
    assert names(whole([COMPUTES], steady=(loading,))) == [(Kind.DATA_LOADING, "")]
    assert names(whole([BUBBLE], steady=(COMPUTES,))) == [(Kind.PIPELINE_BUBBLE, "")]
    assert names(whole([UNKNOWN], steady=(COMPUTES,))) == [(Kind.COMPUTE_BOUND, "")]


def test_a_job_that_hangs_at_its_end_hung_whatever_it_went_through():
    hang = Finding(kind=Kind.HANG, confidence=0.9)
    found = [hang, COMPUTES]
    assert whole(found, fault(3, 40.0), fault(None, 5.0, kind=Kind.HANG)) == found


def test_a_fault_of_an_earlier_aggregator_is_only_likely():
    earlier = FaultPeriod(
        kind=Kind.LATE_HOSTS,
        began_unix_s=BEGAN_UNIX_S,
        seen_unix_s=BEGAN_UNIX_S + 20,
        gain_ratio=0.3,
        lost_s=6.0,
    )
    (first,) = whole([COMPUTES], earlier)
    assert (first.kind, first.certainty) == (Kind.LATE_HOSTS, "likely")


def test_without_steps_and_faults_nothing_changes():
    assert whole([UNKNOWN], job_s=0.0) == [UNKNOWN]


def longer(lost_s: float) -> FaultPeriod:
    """Steps that were longer for an unknown cause."""
    return replace(
        fault(None, lost_s, kind=Kind.UNKNOWN), confidence=0.0, evidence=("Since step 20.",), advice=""
    )


def test_longer_steps_of_an_unknown_cause_are_said_where_nothing_else_is_known():
    unknown = replace(UNKNOWN, evidence=("perfd saw no GPU.",), advice="Log timers.")
    (first,) = whole([unknown], longer(6.0))
    assert first.headline == "Steps take longer than before, and perfd can't yet tell why"
    assert (first.confidence, first.gain_ratio, first.since_step) == (0.0, pytest.approx(0.06), 20)
    assert first.evidence[0].startswith("It cost 6.0% of the time in which the job made steps")
    assert (first.evidence[1:], first.advice) == (("Since step 20.", "perfd saw no GPU."), "Log timers.")
    assert whole([unknown], longer(1.9)) == [unknown]
    # All steps of the job may show the same change.
    again = replace(unknown, since_step=21, gain_ratio=0.5, evidence=("Since step 21.",))
    (first,) = whole([again], longer(6.0))
    assert (first.since_step, first.evidence[1:]) == (20, ("Since step 21.",))
    assert whole([again], longer(1.9)) == [again]


def test_a_cause_that_cost_less_comes_before_longer_steps_of_an_unknown_one():
    found = whole([UNKNOWN], longer(20.0), fault(3, 3.0, at_s=60.0))
    assert [one.short_name for one in found] == ["straggler", "longer steps, cause unknown"]
    found = whole([BUBBLE], longer(50.0))
    assert [one.short_name for one in found] == ["pipeline bubble", "longer steps, cause unknown"]
    found = whole([COMPUTES], longer(50.0), fault(3, 1.0, at_s=60.0))
    assert [one.short_name for one in found] == ["computation", "longer steps, cause unknown"]
    # Of the rank's fault, which is in the list, all that is known shows nothing else.
    slow = Finding(
        kind=Kind.STRAGGLER, confidence=0.8, gain_ratio=0.4, culprits=(Culprit(kind="rank", id=3),)
    )
    assert [one.short_name for one in whole([slow], longer(50.0), fault(3, 1.0, at_s=60.0))] == [
        "longer steps, cause unknown"
    ]
