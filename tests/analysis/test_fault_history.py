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


UNKNOWN = Finding(kind=Kind.UNKNOWN, confidence=0.0)


def longer(*, since_step: int = 23, gain_ratio: float = 0.3) -> Finding:
    """Steps that became longer for an unknown cause, as `seen` has it of a second each."""
    return replace(
        UNKNOWN, gain_ratio=gain_ratio, step_s=1.0, since_step=since_step, evidence=(f"Since {since_step}.",)
    )


def test_longer_steps_of_an_unknown_cause_are_a_period_since_they_are_longer():
    (fault,) = seen([UNKNOWN] * 10 + [longer()] * 11 + [UNKNOWN] * 20)
    assert fault.headline == "longer steps, cause unknown"
    assert (fault.began_unix_s - BEGAN_UNIX_S, fault.seen_unix_s - BEGAN_UNIX_S) == (2, 20)
    assert (fault.first_step, fault.last_step, fault.lasts) == (23, 40, False)
    assert (fault.lost_s, fault.confidence, fault.evidence) == (pytest.approx(0.3 * 18), 0.0, ("Since 23.",))
    assert not seen([UNKNOWN] * 40)
    assert not seen([replace(longer(), may_be_over=True)] * 40)


LATE = Finding(kind=Kind.LATE_HOSTS, confidence=0.6, gain_ratio=0.3, longer_for_s=18.0, since_step=23)


@pytest.mark.parametrize(
    ("cause", "headline"),
    [(slow(2), "straggler: rank 2"), (LATE, "late hosts"), (slow(2, gain_ratio=0.15), "straggler: rank 2")],
)
def test_a_cause_that_is_found_later_has_the_one_period_since_steps_are_longer(cause, headline):
    # For a moment the headline is held before its cause.
    history = FaultHistory()
    seen([UNKNOWN] * 10 + [longer()] * 10, known=history)
    for at_s in range(20, 40):
        moment = Moment(unix_s=BEGAN_UNIX_S + at_s, step=20 + at_s, steady_steps=20, newest_step=20 + at_s)
        history.take([longer(), cause] if at_s < 24 else [cause], moment)
    (fault,) = history.periods
    assert (fault.headline, fault.first_step) == (headline, 23)
    assert (fault.began_unix_s - BEGAN_UNIX_S, fault.seen_unix_s - BEGAN_UNIX_S) == (2, 39)
    known_s = 37 if cause is LATE else 19
    lost_s = 0.3 * (37 - known_s) + cause.gain_ratio * known_s
    assert fault.lost_s == pytest.approx(lost_s)
    assert fault.gain_ratio == pytest.approx(lost_s / 37)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(slow(2, gain_ratio=0.14), id="costs less than half"),
        pytest.param(replace(slow(2), longer_for_s=1.0), id="began later"),
        pytest.param(HANG, id="is no cause of longer steps"),
    ],
)
def test_another_fault_leaves_the_period_of_longer_steps(other):
    faults = seen([UNKNOWN] * 10 + [longer()] * 10 + [other] * 10)
    assert [one.kind for one in faults] == [Kind.UNKNOWN, other.kind]
    assert faults[0].began_unix_s == BEGAN_UNIX_S + 2


def test_a_rank_that_becomes_slow_long_after_steps_became_longer_is_not_blamed_for_all_of_that_time():
    faults = seen([UNKNOWN] * 10 + [longer()] * 40 + [slow(2)] * 10)
    assert [one.headline for one in faults] == ["longer steps, cause unknown", "straggler: rank 2"]
    assert faults[1].began_unix_s == BEGAN_UNIX_S + 50


def test_what_the_job_is_set_up_to_lose_may_be_why_its_steps_are_longer():
    assert not seen([UNKNOWN] * 10 + [longer()] * 10 + [BUBBLE] * 20)


def test_a_fault_during_which_steps_are_counted_otherwise_has_its_last_step():
    """As in recording pair111, whose operations prove to be thirteen micro-batches of a step."""
    history = FaultHistory()
    for at_s, step in enumerate([183, 190, 197, 15, 16, 16, 17, 17]):
        moment = Moment(unix_s=BEGAN_UNIX_S + at_s, step=None, steady_steps=20, newest_step=step)
        dear = step > 100
        since = f"Steps are longer since step {183 if dear else 14}."
        history.take([replace(slow(1, gain_ratio=0.4 if dear else 0.2), evidence=(since,))], moment)
    (fault,) = history.periods
    assert (fault.first_step, fault.last_step) == (None, 17)
    assert fault.evidence == ("Steps are longer since step 14.",)
    assert fault.period.endswith(", until step 17")
