"""What was wrong with a job stays known after it is over: from when to when, by whom, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from perfd.analysis.findings import Culprit, FaultHistory, FaultPeriod, Finding, Kind, Moment

BEGAN_UNIX_S = 1_764_000_000.0
NOTHING = Finding(kind=Kind.COMPUTE_BOUND, confidence=0.4)
LOADING = Finding(kind=Kind.DATA_LOADING, confidence=0.8, gain_ratio=0.3, since_step=30, longer_for_s=4.0)
BUBBLE = Finding(kind=Kind.PIPELINE_BUBBLE, confidence=0.8, gain_ratio=0.3)
LAUNCHES = Finding(kind=Kind.LAUNCH_BOUND, confidence=0.6, gain_ratio=0.2)
HANG = Finding(kind=Kind.HANG, confidence=0.9)


def slow(rank: int, *, kind: Kind = Kind.STRAGGLER, gain_ratio: float | None = 0.2) -> Finding:
    return Finding(
        kind=kind, confidence=0.8, gain_ratio=gain_ratio, culprits=(Culprit(kind="rank", id=rank),)
    )


def seen(
    looks: Sequence[Finding | None], *, known: FaultHistory | None = None, stands: bool = False
) -> Sequence[FaultPeriod]:
    """The periods after one look a second at steps of a second; None is a look that was not made."""
    history = known or FaultHistory()
    for at_s, look in enumerate(looks):
        if look is not None:
            step = 20 if stands else 20 + at_s
            history.take(
                [look],
                Moment(unix_s=BEGAN_UNIX_S + at_s, step=step, steady_steps=20, step_s=1.0, newest_step=step),
            )
    return history.periods


def test_a_fault_that_is_over_has_its_period_rank_and_cost():
    (fault,) = seen([NOTHING] * 10 + [slow(2)] * 21 + [NOTHING] * 20)
    assert (fault.kind, fault.headline) == (Kind.STRAGGLER, "straggler: rank 2")
    assert (fault.began_unix_s - BEGAN_UNIX_S, fault.seen_unix_s - BEGAN_UNIX_S) == (10, 30)
    assert (fault.first_step, fault.last_step, fault.lasts) == (30, 50, False)
    assert (fault.gain_ratio, fault.lost_s) == (pytest.approx(0.2), pytest.approx(4.0))
    assert fault.sentence == (
        "straggler: rank 2 (2025-11-24 16:00:10 UTC to 2025-11-24 16:00:30 UTC, 20.0 s, steps 30 to 50):"
        " cost 20.0% of a step, 4000.0 ms in all."
    )


def test_a_fault_that_goes_on_is_said_to():
    (fault,) = seen([slow(2)] * 5)
    assert fault.lasts
    assert "and goes on" in fault.sentence


def test_a_second_fault_of_the_same_rank_is_another_period_and_a_gap_in_the_evidence_is_not():
    assert len(seen([slow(2)] * 5 + [NOTHING] * 30 + [slow(2)] * 5)) == 2
    (fault,) = seen([slow(2)] * 5 + [NOTHING] * 5 + [slow(2)] * 5)
    # In the gap nothing was found to be lost.
    assert fault.lost_s == pytest.approx(0.2 * 9)


def test_a_fault_began_when_steps_became_longer_not_when_it_was_found():
    (fault,) = seen([NOTHING] * 10 + [LOADING] * 5)
    assert fault.began_unix_s == BEGAN_UNIX_S + 6
    assert fault.first_step == 30
    assert fault.lost_s == pytest.approx(0.3 * 8)


def test_a_fault_that_is_known_better_later_is_one_and_has_the_kind_that_was_found_for_longest():
    (fault,) = seen([slow(1)] * 3 + [slow(1, kind=Kind.DATA_LOADING)] * 9)
    assert fault.kind is Kind.DATA_LOADING
    late = Finding(kind=Kind.LATE_HOSTS, confidence=0.6, gain_ratio=0.3, longer_for_s=2.0)
    (fault,) = seen([late] * 2 + [LOADING] * 9)
    assert fault.kind is Kind.DATA_LOADING


def test_two_ranks_that_are_slow_in_turn_are_two_faults():
    faults = seen([slow(1)] * 8 + [slow(3)] * 8)
    assert [one.headline for one in faults] == ["straggler: rank 1", "straggler: rank 3"]


def test_one_odd_round_and_what_the_job_is_set_up_to_lose_are_no_faults():
    always = Finding(kind=Kind.DATA_LOADING, confidence=0.8, gain_ratio=0.3)
    held = Finding(kind=Kind.STRAGGLER, confidence=0.8, gain_ratio=0.2, may_be_over=True)
    assert not seen([slow(2), NOTHING] * 1 + [NOTHING] * 9)
    for finding in (always, BUBBLE, held, NOTHING):
        assert not seen([finding] * 20)


def test_while_a_job_makes_no_step_for_long_its_findings_are_no_news_but_a_hang_costs_all_of_the_time():
    assert not seen([NOTHING] * 11 + [slow(2)] * 30, stands=True)
    # Rows of operations come seconds after their steps.
    (fault,) = seen([NOTHING] * 3 + [slow(2)] * 30, stands=True)
    assert fault.lost_s == pytest.approx(0.2 * 7)
    (fault,) = seen([HANG] * 31, stands=True)
    assert (fault.gain_ratio, fault.lost_s) == (1.0, pytest.approx(30.0))


def test_a_pause_between_two_looks_is_not_counted_as_lost():
    (fault,) = seen([slow(2)] * 3 + [None] * 600 + [slow(2)] * 3)
    assert fault.lost_s == pytest.approx(0.2 * (4 + 10))


def test_a_job_whose_steps_are_never_known_has_its_faults_listed():
    history = FaultHistory()
    for at_s in range(20):
        history.take([LOADING], Moment(unix_s=BEGAN_UNIX_S + at_s, step=None, steady_steps=0))
    (fault,) = history.periods
    # It began four seconds before it was found.
    assert fault.lost_s == pytest.approx(0.3 * (4 + 19))


def test_a_fault_has_the_evidence_and_the_advice_of_the_round_in_which_it_cost_most():
    def found(gain_ratio: float) -> Finding:
        words = f"It costs {gain_ratio}."
        return replace(slow(2, gain_ratio=gain_ratio), evidence=[words], advice=f"Fix {gain_ratio}.")

    (fault,) = seen([found(0.2), found(0.4), found(0.3)])
    assert (fault.confidence, fault.evidence, fault.advice) == (0.8, ("It costs 0.4.",), "Fix 0.4.")


def test_what_rounds_found_outside_of_faults_is_kept_apart():
    history = FaultHistory()
    assert not history.steady.findings
    seen([BUBBLE] * 10 + [LAUNCHES] * 4 + [slow(2)] * 20 + [LAUNCHES] * 5 + [BUBBLE] * 3, known=history)
    assert [one.kind for one in history.steady.findings] == [Kind.PIPELINE_BUBBLE]


def test_an_unknown_cause_and_a_fault_that_may_be_over_are_no_steady_causes():
    history = FaultHistory()
    unknown = Finding(kind=Kind.UNKNOWN, confidence=0.0)
    over = replace(slow(2), may_be_over=True)
    seen([unknown] * 30 + [over] * 30 + [LAUNCHES] * 10, known=history)
    assert [one.kind for one in history.steady.findings] == [Kind.LAUNCH_BOUND]


def test_a_cost_that_is_unknown_is_not_zero():
    (fault,) = seen([slow(2, gain_ratio=None)] * 5)
    assert (fault.gain_ratio, fault.lost_s) == (None, None)
    assert fault.sentence.endswith("cost unknown.")


def test_what_an_earlier_aggregator_saw_stays_and_what_cost_least_goes_first():
    history = FaultHistory(seen([slow(7)] * 5))
    faults = seen([slow(2)] * 5, known=history)
    assert [one.headline for one in faults] == ["straggler: rank 7", "straggler: rank 2"]
    assert not faults[0].lasts
    for rank in range(100, 164):
        look = [slow(rank, gain_ratio=0.5)] * 5 + [NOTHING] * 20
        history = FaultHistory(history.periods)
        seen(look, known=history)
    named = [one.headline for one in history.periods]
    assert len(named) == 64
    assert not {"straggler: rank 7", "straggler: rank 2"} & set(named)
