"""The headline of a live job changes on evidence that lasts, and once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfd.analysis.findings import Culprit, Effect, Finding, Kind, Moment, Verdict, steady_verdict
from perfd.thresholds import THRESHOLDS

LAUNCH = Finding(kind=Kind.LAUNCH_BOUND, confidence=0.6, gain_ratio=0.15)
HOST = Finding(kind=Kind.HOST_BOUND, confidence=0.4, gain_ratio=0.2)
WAITING = Finding(kind=Kind.DATA_LOADING, confidence=0.4, gain_ratio=0.2, since_step=90)
COSTLY = Finding(kind=Kind.COMMUNICATION, confidence=0.8, gain_ratio=0.5)
THROTTLED = Finding(kind=Kind.THROTTLING, confidence=0.8, gain_ratio=0.5)
UNKNOWN = Finding(kind=Kind.UNKNOWN, confidence=0.0)
COMPUTE = Finding(kind=Kind.COMPUTE_BOUND, confidence=0.4)
HANG = Finding(kind=Kind.HANG, confidence=0.9)
HOLD_S = THRESHOLDS.verdict_hold_s
HOLD_STEPS = THRESHOLDS.verdict_hold_steps_count
BLAME_STEPS = THRESHOLDS.blame_hold_steps_count


def slow(rank: int) -> Finding:
    culprits = (Culprit(kind="rank", id=rank),)
    return Finding(kind=Kind.STRAGGLER, confidence=0.8, gain_ratio=0.2, culprits=culprits)


def heads(
    looks: Sequence[Finding | Sequence[Finding]],
    *,
    step_s: float = 0.1,
    first_step: int = 100,
    look_s: float = 1.0,
) -> list[Finding]:
    """What looks, one after the other, have as headline; without steps where a step takes no time."""
    verdict, said = Verdict(), []
    for number, look in enumerate(looks):
        at_s = number * look_s
        step = first_step + int(at_s / step_s) if step_s else None
        now = Moment(unix_s=at_s, step=step, steady_steps=step or 100, step_s=step_s or None)
        verdict, findings = steady_verdict(verdict, [look] if isinstance(look, Finding) else look, now)
        said.append(findings[0])
    return said


def changes(said: Sequence[Finding]) -> int:
    return sum((a.kind, a.culprits) != (b.kind, b.culprits) for a, b in itertools.pairwise(said))


def test_a_cause_that_began_with_longer_steps_is_shown_at_once_and_held_as_any_other():
    began = Finding(kind=Kind.DATA_LOADING, confidence=0.6, gain_ratio=0.12, longer_for_s=HOLD_S)
    said = heads([LAUNCH, began, LAUNCH, LAUNCH])
    assert [one.kind for one in said] == [LAUNCH.kind, *[Kind.DATA_LOADING] * 3]
    assert [one.may_be_over for one in said] == [False, False, True, True]
    for long_ago_s in (HOLD_S + 0.1, None):
        assert heads([LAUNCH, replace(began, longer_for_s=long_ago_s)] * 2) == [LAUNCH] * 4


def test_what_crosses_a_threshold_for_a_few_looks_changes_nothing():
    looks = [LAUNCH, LAUNCH, UNKNOWN, LAUNCH, HOST, HOST, LAUNCH, UNKNOWN]
    assert set(heads(looks)) == {LAUNCH}
    assert set(heads([UNKNOWN, HOST, UNKNOWN, UNKNOWN, HOST, UNKNOWN])) == {UNKNOWN}


def test_other_evidence_that_lasts_is_one_change():
    said = heads([LAUNCH] * 5 + [HOST] * 20)
    assert changes(said) == 1
    assert said.index(HOST) == 5 + HOLD_S


def test_an_unknown_cause_is_replaced_after_half_as_long_and_comes_back_after_twice_as_long():
    for cause in (COMPUTE, WAITING):
        said = heads([UNKNOWN] * 5 + [cause] * 20 + [UNKNOWN] * 20)
        assert said.index(cause) == 5 + HOLD_S / 2
        assert said.index(UNKNOWN, 10) == 25 + 2 * HOLD_S


def test_that_nothing_else_limits_a_job_is_no_first_verdict_before_rounds_found_it_for_some_seconds():
    for compute in (COMPUTE, Finding(kind=Kind.NONE, confidence=0.6, evidence=("MFU is 42%.",))):
        said = heads([compute] * 10, first_step=5)
        assert {one.kind for one in said[: int(HOLD_S / 2)]} == {Kind.UNKNOWN}
        assert said[0].evidence[:-1] == tuple(compute.evidence)
        assert "too short a time" in said[0].evidence[-1]
        assert said[int(HOLD_S / 2) :] == [compute] * (10 - int(HOLD_S / 2))
    # What limits it is said at once, as before: one headline where there were two.
    bubble = Finding(kind=Kind.PIPELINE_BUBBLE, confidence=0.9, gain_ratio=0.21)
    assert [one.kind for one in heads([COMPUTE] * 2 + [bubble] * 8)] == [Kind.UNKNOWN] * 2 + [bubble.kind] * 8
    # Nor does it wait after a rank was blamed for as long.
    said = heads([UNKNOWN] + [slow(3)] * 6 + [COMPUTE] * 6, first_step=5)
    assert [one.kind for one in said[-3:]] == [Kind.COMPUTE_BOUND] * 3
    assert {one.kind for one in said[1:]} == {Kind.STRAGGLER, Kind.COMPUTE_BOUND}


def test_with_long_steps_it_lasts_for_some_steps():
    said = heads([LAUNCH] * 5 + [HOST] * 60, step_s=4.0)
    assert said.index(HOST) == pytest.approx(5 + 4 * HOLD_STEPS, abs=4)


def test_without_steps_time_alone_decides():
    assert heads([LAUNCH] * 5 + [HOST] * 20, step_s=0.0).index(HOST) == 5 + HOLD_S


def test_others_in_turn_end_a_headline_that_is_not_found_any_more():
    said = heads([LAUNCH] * 5 + [HOST, UNKNOWN] * 10)
    assert said[5] is LAUNCH
    assert said[-1] is not LAUNCH


def test_a_fault_is_said_at_once_and_the_headline_before_is_back_after_it():
    said = heads([LAUNCH] * 5 + [HANG] * 4 + [UNKNOWN] * 2 + [LAUNCH] * 4)
    assert said == [LAUNCH] * 5 + [HANG] * 4 + [LAUNCH] * 6


def test_ranks_that_are_late_together_are_said_once_rounds_have_found_them_for_a_while():
    together = Finding(kind=Kind.STRAGGLER, confidence=0.4, gain_ratio=0.2, ranks=(2, 3))
    assert heads([LAUNCH, together, LAUNCH, LAUNCH]) == [LAUNCH] * 4
    assert heads([LAUNCH, *[together] * 20])[-1] == together
    assert heads([LAUNCH, together, slow(3)])[-1] == slow(3)


def test_a_gap_in_evidence_against_a_rank_is_no_change():
    said = heads([LAUNCH] * 5 + [slow(3)] * 2 + [UNKNOWN, LAUNCH, slow(3)] + [LAUNCH] * 8)
    assert {said[5].kind, *(one.kind for one in said[7:13])} == {Kind.STRAGGLER}
    assert said[13:] == [LAUNCH] * 5
    assert changes(said) == 2


def test_what_is_held_against_a_rank_says_that_it_may_be_over():
    reported = slow(3)
    said = heads([LAUNCH] * 5 + [reported] * 2 + [LAUNCH] * 2)
    assert said[6].evidence == reported.evidence
    assert (
        said[7].evidence
        == said[8].evidence
        == (*reported.evidence, "The newest rounds do not find it: it may be over.")
    )


def test_with_long_steps_blame_is_held_for_some_of_them():
    said = heads([LAUNCH] * 5 + [slow(3)] * 9 + [LAUNCH] * 60, step_s=4.0)
    assert said.index(LAUNCH, 5) == pytest.approx(14 + 4 * BLAME_STEPS, abs=4)


def test_blame_is_over_also_where_no_more_steps_come():
    verdict, said = Verdict(), []
    for at_s, look in enumerate([slow(3)] * 3 + [LAUNCH] * 6):
        now = Moment(unix_s=float(at_s), step=100, steady_steps=100, step_s=1.0)
        verdict, found = steady_verdict(verdict, [look], now)
        said.append(found[0].kind)
    assert said == [Kind.STRAGGLER] * 6 + [Kind.LAUNCH_BOUND] * 3


def test_blame_that_one_look_found_is_over_with_the_next_one_unless_it_costs_much():
    little = replace(slow(3), gain_ratio=0.09)
    assert heads([LAUNCH] * 5 + [little] + [LAUNCH] * 2) == [LAUNCH] * 5 + [little] + [LAUNCH] * 2
    said = heads([LAUNCH] * 5 + [slow(3)] + [LAUNCH] * 5)
    assert [one.kind for one in said[5:]] == [Kind.STRAGGLER] * 4 + [Kind.LAUNCH_BOUND] * 2
    assert [one.may_be_over for one in said[5:9]] == [False, True, True, True]
    # As in recording sharded4: four steps of evidence, then one without, then six.
    assert changes(heads([COMPUTE] * 12 + [slow(0), COMPUTE, slow(0), slow(0)])[8:]) == 1
    assert heads([little, replace(slow(2), gain_ratio=0.09), LAUNCH], first_step=100)[-1] is LAUNCH


def test_that_hosts_are_late_is_held_after_one_look_since_it_names_no_rank():
    late = Finding(kind=Kind.LATE_HOSTS, confidence=0.6, gain_ratio=0.2)
    said = heads([LAUNCH] * 5 + [late] + [LAUNCH] * 20)
    assert changes(said) == 2
    assert sum(finding.kind is Kind.LATE_HOSTS for finding in said) == 1 + THRESHOLDS.blame_hold_s


def test_blame_is_not_held_against_what_costs_far_more_or_after_a_restart():
    dear = [COSTLY, slow(3)]
    assert heads([slow(3), slow(3), dear])[-1] is COSTLY
    began, later = (Moment(unix_s=at_s, step=step, steady_steps=50) for at_s, step in ((9.0, 88), (10.0, 90)))
    blaming = Verdict(blamed=slow(3), blamed_since=began, confirmed=True)
    assert steady_verdict(blaming, [HOST], later)[1][0].kind is Kind.STRAGGLER
    again = Moment(unix_s=11.0, step=12, steady_steps=12)
    assert steady_verdict(blaming, [HOST], again) == (
        Verdict(settled=HOST, settled_since=again, steady_steps=12),
        [HOST],
    )


def test_a_cause_that_costs_far_more_is_said_at_once_and_a_clock_that_is_low_for_a_moment_is_not():
    assert heads([LAUNCH, COSTLY, LAUNCH]) == [LAUNCH, COSTLY, COSTLY]
    assert heads([LAUNCH, [COSTLY, replace(LAUNCH, gain_ratio=0.6)]])[1].kind is Kind.LAUNCH_BOUND
    assert heads([LAUNCH, THROTTLED, LAUNCH]) == [LAUNCH] * 3
    assert heads([LAUNCH] + [THROTTLED] * 10)[-1] is THROTTLED


def test_the_first_verdict_after_few_steps_does_not_wait():
    looks = [UNKNOWN] * 3 + [HOST] * 3
    assert heads(looks, first_step=7, step_s=1.0) == looks


def test_who_is_not_found_to_be_at_fault_any_more_is_not_blamed():
    experts = Finding(
        kind=Kind.EXPERT_IMBALANCE, confidence=0.6, gain_ratio=0.4, culprits=(Culprit(kind="experts", id=2),)
    )
    assert heads([LAUNCH, experts, UNKNOWN]) == [LAUNCH, experts, UNKNOWN]


def test_a_fault_in_between_does_not_make_an_old_headline_new():
    said = heads([LAUNCH] + [UNKNOWN] * 5 + [slow(1)] * 5 + [UNKNOWN] * 5)
    assert said[5] is LAUNCH
    assert said[-1] is UNKNOWN


def test_another_slow_rank_is_said_at_once():
    assert heads([slow(1), slow(2), slow(1)]) == [slow(1), slow(2), slow(1)]


def test_a_bubble_whose_stages_look_unequal_for_a_look_is_still_the_bubble():
    """As in a recorded run whose rank 2 becomes slow by 4%."""
    bubble = Finding(kind=Kind.PIPELINE_BUBBLE, confidence=0.9, gain_ratio=0.24)
    stage = (Culprit(kind="stage", id=1),)
    unequal = Finding(kind=Kind.PIPELINE_IMBALANCE, confidence=0.9, gain_ratio=0.12, culprits=stage)
    assert heads([bubble, unequal, slow(2)]) == [bubble, bubble, slow(2)]
    assert heads([bubble, *[unequal] * 9])[-1] is unequal
    assert heads([bubble, replace(unequal, gain_ratio=0.4)])[-1].kind is Kind.PIPELINE_IMBALANCE


@pytest.mark.parametrize(("restarted", "held"), [(False, True), (True, False)])
def test_a_headline_is_held_though_slow_steps_of_the_start_turn_out_not_to_be_steady(
    restarted: bool, held: bool
):
    """As in recording experts2: 11 steady steps, of which five take three times as long as later ones."""
    verdict, said = Verdict(), []
    looks = [(11, LAUNCH), (8, UNKNOWN), (9, HOST), (12, HOST), (14, HOST)]
    for at, (steady, look) in enumerate(looks):
        step = 15 + at - (14 if restarted and at else 0)
        now = Moment(unix_s=float(at), step=step, steady_steps=steady, step_s=0.4, newest_step=step)
        verdict, found = steady_verdict(verdict, [look], now)
        said.append(found[0])
    assert said == ([LAUNCH] * 5 if held else [LAUNCH, UNKNOWN, HOST, HOST, HOST])


def test_while_steps_are_few_and_after_a_restart_the_newest_look_counts():
    assert heads([UNKNOWN, HOST, LAUNCH], first_step=1, step_s=1.0) == [UNKNOWN, HOST, LAUNCH]
    held, _ = steady_verdict(Verdict(settled=LAUNCH), [HOST], Moment(unix_s=10.0, step=90, steady_steps=50))
    assert held.settled is LAUNCH
    again = Moment(unix_s=11.0, step=12, steady_steps=12)
    assert steady_verdict(held, [HOST], again)[0].settled is HOST


def test_a_held_headline_has_its_newest_figures_and_what_is_found_beside_it():
    newer = Finding(kind=Kind.LAUNCH_BOUND, confidence=0.6, gain_ratio=0.1)
    now = Moment(unix_s=0.0, step=100, steady_steps=100)
    _, found = steady_verdict(Verdict(settled=LAUNCH), [HOST, newer], now)
    assert list(found) == [newer, HOST]
    _, found = steady_verdict(Verdict(settled=LAUNCH), [COMPUTE, HOST], now)
    assert list(found) == [LAUNCH, HOST]


def late(since_step: int | None, gain_ratio: float = 0.2) -> Finding:
    return Finding(
        kind=Kind.LATE_HOSTS, confidence=0.6, gain_ratio=gain_ratio, longer_for_s=3.0, since_step=since_step
    )


def cause(kind: Kind, since_step: int | None) -> Finding:
    effects = (Effect(kind=Kind.LATE_HOSTS),)
    return Finding(
        kind=kind, confidence=0.6, gain_ratio=0.2, longer_for_s=3.0, since_step=since_step, effects=effects
    )


@pytest.mark.parametrize("kind", [Kind.DATA_LOADING, Kind.HOST_CONTENTION])
@given(looks=st.lists(st.tuples(st.booleans(), st.integers(88, 90)), min_size=1, max_size=40))
def test_the_known_cause_of_a_change_stays_the_headline_while_rounds_show_only_its_effect(
    kind: Kind, looks: list[tuple[bool, int]]
):
    """In any order, as if one source has gaps; the gain is that of the newest round."""
    shown = [
        cause(kind, since_step) if known else late(since_step, 0.2 + at / 100)
        for at, (known, since_step) in enumerate(looks)
    ]

    said = heads([LAUNCH, *shown])

    first = next((at for at, (known, _) in enumerate(looks) if known), len(looks))
    effect_first = [Kind.LATE_HOSTS] * first + [kind] * (len(looks) - first)
    assert [one.kind for one in said] == [Kind.LAUNCH_BOUND, *effect_first]
    assert [one.gain_ratio for one in said[1:]] == [one.gain_ratio for one in shown]


@pytest.mark.parametrize(
    ("headline", "last_step"),
    [
        (cause(Kind.DATA_LOADING, 90), 92),
        (cause(Kind.HOST_CONTENTION, 90), 92),
        # For these it is only known when they were found.
        (cause(Kind.HOST_CONTENTION, None), 100),
        (slow(1), 100),
    ],
)
def test_hosts_that_became_late_after_the_headline_was_found_are_the_headline_at_once(
    headline: Finding, last_step: int
):
    for since_step, kind in (
        (last_step, headline.kind),
        (last_step + 1, Kind.LATE_HOSTS),
        (None, Kind.LATE_HOSTS),
    ):
        assert heads([*[headline] * 10, late(since_step)])[-1].kind is kind


def test_a_blamed_rank_explains_longer_steps_without_a_rank_but_is_not_blamed_for_longer():
    said = heads([slow(1), slow(1), *[late(95)] * 6], step_s=0.3)

    assert [one.kind for one in said] == [Kind.STRAGGLER] * 5 + [Kind.LATE_HOSTS] * 3
    assert heads([LAUNCH, slow(1), slow(1), late(95), LAUNCH, LAUNCH, LAUNCH])[-1] is LAUNCH
    # What only one round found is not held.
    assert heads([LAUNCH, slow(1), late(95)])[-1].kind is Kind.LATE_HOSTS


@given(st.lists(st.sampled_from([LAUNCH, HOST, UNKNOWN, COMPUTE]), min_size=1, max_size=60))
def test_causes_change_at_most_once_in_the_time_that_one_is_held(looks):
    said = heads(looks)
    # An unknown cause is held for less, and replaces another one only after longer.
    assert changes(said) <= len(looks) / HOLD_S + (said[0].kind is Kind.UNKNOWN)
    early = len(list(itertools.takewhile(lambda one: one.kind is Kind.UNKNOWN, said)))
    assert all(finding in looks[: place + 1] for place, finding in enumerate(said) if place >= early)


@given(st.lists(st.sampled_from([LAUNCH, HOST, UNKNOWN, slow(1)]), min_size=2, max_size=30))
def test_more_frequent_looks_at_the_same_change_no_headline_that_seldom_ones_have_later(looks):
    seldom = heads(looks, look_s=1.0)
    often = heads([look for look in looks for _ in range(4)], look_s=0.25)
    assert often[::4] == seldom


NOTHING = Finding(kind=Kind.NONE, confidence=0.4)


@pytest.mark.parametrize(("one", "other"), [(COMPUTE, UNKNOWN), (WAITING, UNKNOWN)])
def test_an_unknown_cause_replaces_a_headline_only_after_twice_the_time(one: Finding, other: Finding):
    said = heads([one] * 5 + [other] * 20)
    assert said.index(other) == 5 + 2 * HOLD_S


@pytest.mark.parametrize(("one", "other"), [(NOTHING, COMPUTE), (HOST, UNKNOWN), (LAUNCH, UNKNOWN)])
def test_what_differs_by_a_threshold_only_is_replaced_after_a_minute(one: Finding, other: Finding):
    said = heads([one] * 5 + [other] * 80)
    assert said.index(other) == 5 + 8 * HOLD_S


def test_an_unknown_cause_replaces_a_share_of_time_sooner_if_steps_take_otherwise_than_before():
    verdict, said = Verdict(), list[Finding]()
    for at_s in range(30):
        step_s = 0.4 if at_s < 5 else 0.5
        now = Moment(unix_s=at_s, step=100 + at_s, steady_steps=100, step_s=step_s)
        verdict, found = steady_verdict(verdict, [HOST if at_s < 5 else UNKNOWN], now)
        said.append(found[0])
    assert said.index(UNKNOWN) == 5 + 2 * HOLD_S


@pytest.mark.parametrize("other", [UNKNOWN, COMPUTE, COSTLY, Finding(kind=Kind.LATE_HOSTS, confidence=0.6)])
def test_without_another_step_only_a_rank_or_a_hang_replaces_a_headline(other: Finding):
    verdict, said = Verdict(), []
    for at_s, look in enumerate([HOST] * 5 + [other] * 60 + [HANG]):
        step = min(100 + at_s, 104)
        now = Moment(unix_s=at_s, step=None, steady_steps=100, step_s=1.0, newest_step=step)
        verdict, findings = steady_verdict(verdict, [look], now)
        said.append(findings[0])
    assert said == [HOST] * 65 + [HANG]


def test_late_hosts_of_a_step_may_be_seen_two_seconds_after_its_line_and_no_later():
    late = Finding(kind=Kind.LATE_HOSTS, confidence=0.6, gain_ratio=0.3, longer_for_s=60.0, since_step=90)

    def said(seen_after_s: float) -> Finding:
        verdict = Verdict()
        for at_s, look, step in ((0.0, HOST, 104), (5.0, HOST, 105), (5.0 + seen_after_s, late, 105)):
            now = Moment(unix_s=at_s, step=step, steady_steps=100, step_s=4.0, newest_step=step)
            verdict, findings = steady_verdict(verdict, [look], now)
        return findings[0]

    assert [said(after_s) for after_s in (1.0, 2.0, 2.1)] == [late, late, HOST]


def test_what_has_just_begun_is_shown_before_the_next_line_of_the_log():
    began = Finding(kind=Kind.DATA_LOADING, confidence=0.6, gain_ratio=0.3, longer_for_s=2.0)
    verdict, said = Verdict(), []
    for at_s, look in enumerate([HOST] * 5 + [began]):
        now = Moment(unix_s=at_s, step=104, steady_steps=100, step_s=1.0, newest_step=104)
        verdict, findings = steady_verdict(verdict, [look], now)
        said.append(findings[0])
    assert said == [HOST] * 5 + [began]


def test_the_rank_that_was_known_by_its_role_is_the_same_one_later():
    role = (Culprit(kind="broadcast root", id=0),)
    late = Finding(kind=Kind.LATE_HOSTS, confidence=0.6, gain_ratio=0.3, culprits=role, ranks=(0,))
    said = heads([NOTHING] * 9 + [late] * 5 + [stalls(0, 0.1)] + [NOTHING] * 20)[4:]
    assert changes(said) == 2
    assert {one.kind for one in said} == {Kind.NONE, Kind.LATE_HOSTS}


def test_late_hosts_of_a_role_become_a_slow_rank_once_rounds_have_found_it_for_a_while_and_not_back():
    role = (Culprit(kind="tensor rank", id=0),)
    late = Finding(kind=Kind.LATE_HOSTS, confidence=0.6, gain_ratio=0.3, culprits=role, ranks=(0,))
    held = int(THRESHOLDS.blame_hold_s)
    assert changes(heads([late] * 5 + [slow(0)] * held)) == 0
    said = heads([late] * 5 + [slow(0)] * (held + 5) + [late] * (held + 5))
    assert changes(said) == 1
    assert said[-1].kind is Kind.STRAGGLER


def test_behind_a_blamed_rank_what_shows_no_cause_changes_in_the_usual_time():
    # The fault ends after 8 s, and a rank is blamed for another 3.
    said = heads([NOTHING] * 6 + [COMPUTE] * 3 + [slow(1)] * 3 + [COMPUTE] * 9)[4:]
    assert [one.kind for one in said] == [
        *[Kind.NONE] * 5,
        *[Kind.STRAGGLER] * 6,
        *[Kind.COMPUTE_BOUND] * 6,
    ]


def stalls(rank: int, gain_ratio: float) -> Finding:
    return replace(slow(rank), kind=Kind.PERIODIC_STALL, gain_ratio=gain_ratio)


def test_a_rank_that_the_next_look_finds_by_its_stalls_is_not_blamed_by_one_odd_look():
    """As in recording preferred2: half a millisecond in ten of its host, which costs 6% of a step."""
    small = replace(slow(1), gain_ratio=0.084)
    behind = [COMPUTE, stalls(1, 0.072)]
    said = heads([COMPUTE] * 6 + [small, behind, small, behind, behind] + [COMPUTE] * 8)[4:]
    assert [one.kind for one in said] == [
        *[Kind.COMPUTE_BOUND] * 2,
        *[Kind.STRAGGLER] * 6,
        *[Kind.COMPUTE_BOUND] * 7,
    ]
    assert [one.may_be_over for one in said[2:8]] == [False] * 5 + [True]
    other = heads([COMPUTE] * 6 + [small, [COMPUTE, stalls(2, 0.072)], COMPUTE])
    assert [one.kind for one in other[-3:]] == [Kind.STRAGGLER, Kind.COMPUTE_BOUND, Kind.COMPUTE_BOUND]


@pytest.mark.parametrize(("gain_ratio", "kept"), [(0.19, True), (0.32, True), (0.33, False)])
def test_stalls_of_the_blamed_rank_in_all_newest_steps_are_the_same_fault_if_they_cost_not_far_more(
    gain_ratio: float, kept: bool
):
    """As in recording lasting2: of a window with two or three stalls the rank costs 27 or 36%, they 32%."""
    said = heads([LAUNCH, slow(1), slow(1), stalls(1, gain_ratio), stalls(1, gain_ratio)])
    assert said[-1].kind is (Kind.STRAGGLER if kept else Kind.PERIODIC_STALL)
    assert said[-1].gain_ratio == (0.2 if kept else gain_ratio)
    assert not said[-1].may_be_over
    assert heads([slow(1), slow(1), stalls(2, gain_ratio)])[-1].culprits == stalls(2, 0.0).culprits
    # In time the stalls have more evidence, and the fault keeps its name.
    later = heads([slow(1), slow(1), *[stalls(1, gain_ratio)] * 5, stalls(1, 0.17)])[-1]
    assert (later.kind is Kind.STRAGGLER, later.gain_ratio) == (kept, 0.17)


def test_a_rank_that_is_late_with_others_for_a_moment_stays_the_one_to_blame():
    def together(*ranks: int) -> Finding:
        return replace(slow(0), culprits=(), ranks=ranks)

    assert heads([LAUNCH, slow(3), together(2, 3)])[-1].culprits == slow(3).culprits
    assert heads([LAUNCH, slow(3), together(1, 2)])[-1].culprits == ()
    assert heads([LAUNCH, slow(3), *[together(2, 3)] * 4])[-1].culprits == ()


def loading(gain_ratio: float, since_step: int | None) -> Finding:
    return Finding(
        kind=Kind.DATA_LOADING,
        confidence=0.6,
        gain_ratio=gain_ratio,
        since_step=since_step,
        longer_for_s=None if since_step is None else 3.0,
    )


def test_a_loss_known_since_it_began_is_not_replaced_by_a_mean_over_steps_before_or_after_it():
    over = loading(0.4, None)
    said = heads([LAUNCH, loading(0.5, 95), *[over] * 20])
    held_s = int(THRESHOLDS.blame_hold_s)
    assert [one.gain_ratio for one in said] == [0.15, *[0.5] * (1 + held_s), *[0.4] * (20 - held_s)]
    # As long as it goes on the newest figures count.
    assert heads([LAUNCH, loading(0.5, 95), loading(0.4, 95)])[-1].gain_ratio == 0.4
    assert heads([LAUNCH, loading(0.5, 95), loading(0.6, None)])[-1].gain_ratio == 0.6


def moments(looks: Sequence[tuple[Finding, float]], *, before: Sequence[Finding] = ()) -> list[Finding]:
    """The headlines of looks a second apart, each with how long the newest steps take."""
    verdict, said = Verdict(), []
    for at, (look, newest_s) in enumerate([*[(one, 0.3) for one in before], *looks]):
        now = Moment(unix_s=at, step=100 + at, steady_steps=100, step_s=0.3, newest_step_s=newest_s)
        verdict, findings = steady_verdict(verdict, [look], now)
        said.append(findings[0])
    return said[len(before) :]


def test_slow_input_is_over_once_steps_are_short_again_and_the_headline_before_it_returns():
    began = replace(loading(0.4, 110), step_s=0.5)
    looks = [*[(began, 0.5)] * 6, *[(UNKNOWN, 0.3)] * 4]
    kinds = [one.kind for one in moments(looks, before=[LAUNCH] * 10)]
    assert kinds == [Kind.DATA_LOADING] * 8 + [Kind.LAUNCH_BOUND] * 2
    # While steps stay long, only its evidence has a gap.
    looks = [*[(began, 0.5)] * 6, *[(UNKNOWN, 0.5)] * 3]
    assert {one.kind for one in moments(looks, before=[LAUNCH] * 10)} == {Kind.DATA_LOADING}


def test_slow_input_that_shares_of_time_showed_first_leaves_the_headline_before_both():
    began = replace(loading(0.4, 110), step_s=0.5)
    looks = [*[(loading(0.6, None), 0.5)] * 9, *[(began, 0.5)] * 6, *[(UNKNOWN, 0.3)] * 4]
    said = [one.kind for one in moments(looks, before=[HOST] * 10)]
    assert said[-1] is Kind.HOST_BOUND


def test_longer_steps_of_the_same_change_are_slow_input_still_and_those_of_another_are_not():
    began = replace(loading(0.4, 110), step_s=0.5)
    late_hosts = replace(began, kind=Kind.LATE_HOSTS, since_step=118)
    said = moments([*[(began, 0.5)] * 3, *[(late_hosts, 0.5)] * 6], before=[LAUNCH] * 10)
    assert {one.kind for one in said} == {Kind.DATA_LOADING}
    other = replace(late_hosts, step_s=0.8)
    assert moments([*[(began, 0.5)] * 3, (other, 0.8)], before=[LAUNCH] * 10)[-1].kind is Kind.LATE_HOSTS


def test_slow_input_does_not_take_the_place_of_a_blamed_rank():
    began = replace(loading(0.25, 110), step_s=0.5)
    said = moments([*[(slow(1), 0.5)] * 3, (began, 0.5), (slow(1), 0.5)], before=[LAUNCH] * 10)
    assert {one.kind for one in said} == {Kind.STRAGGLER}


def test_the_last_of_ranks_whose_hosts_are_all_late_is_not_blamed_while_rounds_miss_that():
    loading = replace(cause(Kind.DATA_LOADING, 90), effects=())
    last = replace(slow(1), gain_ratio=0.21)
    kinds = [one.kind for one in heads([LAUNCH, *[loading] * 5, last, loading, last, last])]
    assert kinds == [Kind.LAUNCH_BOUND, *[Kind.DATA_LOADING] * 9]


def test_a_rank_that_costs_another_share_than_all_late_hosts_or_lasts_is_blamed():
    loading = replace(cause(Kind.DATA_LOADING, 90), effects=())
    for other in (0.5, 0.1):
        assert heads([loading, replace(slow(1), gain_ratio=other)])[-1].kind is Kind.STRAGGLER
    last = replace(slow(1), gain_ratio=0.2)
    assert heads([loading, *[last] * 9])[-1].kind is Kind.STRAGGLER


def test_a_cause_whose_evidence_falls_below_its_bound_outlasts_its_effect_for_twice_the_time():
    idle = Finding(kind=Kind.HOST_BOUND, confidence=0.4, gain_ratio=0.6)
    small = Finding(kind=Kind.LAUNCH_BOUND, confidence=0.6, gain_ratio=0.26)
    with_effect = replace(small, effects=(Effect(kind=Kind.HOST_BOUND),))
    for before, times in ((small, 1), (with_effect, 2)):
        said = heads([*[before] * 20, *[idle] * 60])
        assert [one.kind for one in said].index(Kind.HOST_BOUND) == 20 + times * HOLD_S


STALLS = Finding(kind=Kind.PERIODIC_STALL, confidence=0.8, gain_ratio=0.6)
CONTENTION = Finding(kind=Kind.HOST_CONTENTION, confidence=0.8, gain_ratio=0.17)


def test_what_a_round_misses_counts_as_found_last():
    """As in recording saved2: a stall of 60% has gaps, in which storage costs 17%."""
    assert changes(heads([*[STALLS] * 20, CONTENTION, *[STALLS] * 5])) == 0
    assert changes(heads([*[STALLS] * 20, *[CONTENTION] * 20])) == 1
    # What costs far more than it did then is news.
    assert heads([*[LAUNCH] * 20, COSTLY])[-1] is COSTLY


def test_the_cause_of_the_headline_takes_its_place_at_once():
    idle = Finding(kind=Kind.HOST_BOUND, confidence=0.4, gain_ratio=0.32)
    loading = Finding(kind=Kind.DATA_LOADING, confidence=0.6, gain_ratio=0.2)
    assert heads([*[idle] * 20, loading])[-1] is loading


def test_a_rank_that_costs_less_does_not_take_the_place_of_a_blamed_one_that_a_round_misses():
    """As in recording evaluatedalone2: rank 0 evaluates every so often, and rank 1 is slow."""
    slower = replace(slow(1), gain_ratio=0.26)
    said = heads([*[LAUNCH] * 20, *[slower] * 5, stalls(0, 0.2), *[slower] * 5])
    assert changes(said) == 1
    assert said[25].may_be_over
    assert (
        heads([*[LAUNCH] * 20, *[slower] * 5, *[stalls(0, 0.2)] * 10])[-1].culprits == stalls(0, 0.2).culprits
    )
    # One that just became slow is named, whatever it costs, and so is one that costs as much.
    for news in (replace(slow(0), longer_for_s=2.0), stalls(0, 0.25)):
        assert heads([*[LAUNCH] * 20, *[slower] * 5, news])[-1] is news


@pytest.mark.parametrize(("gain", "shown"), [(0.09, False), (0.11, True)])
def test_stalls_that_cost_less_than_the_headline_do_not_lead_in_a_gap_of_its_evidence(
    gain: float, shown: bool
):
    """As in recording random4: while lines are of another pace, how long GPUs idle is not known."""
    stalling = replace(stalls(0, gain), confidence=0.8)
    said = heads([*[HOST] * 20, *[UNKNOWN] * 5, *[stalling] * 5, *[HOST] * 5])
    assert (stalling in said) is shown
    assert said[-1] == HOST


def test_contention_on_the_host_of_a_rank_over_the_last_half_minute_is_no_news_at_once():
    of_rank = replace(CONTENTION, gain_ratio=0.07, culprits=(Culprit(kind="rank", id=0),))
    assert changes(heads([*[LAUNCH] * 20, of_rank, *[LAUNCH] * 5])) == 0
    assert heads([*[LAUNCH] * 20, *[of_rank] * 10])[-1] is of_rank


def test_longer_steps_of_an_unknown_cause_are_no_longer_said_as_soon_as_rounds_do_not_find_them():
    longer = replace(UNKNOWN, gain_ratio=0.3, step_s=1.0, since_step=10)
    assert heads([UNKNOWN] * 3 + [longer] * 9 + [UNKNOWN] * 2)[-3:] == [longer, UNKNOWN, UNKNOWN]


def little(rank: int) -> Finding:
    return replace(slow(rank), tentative=True)


def test_a_rank_that_is_late_by_little_is_blamed_once_a_second_look_finds_it():
    once = heads([HOST] * 3 + [little(3)] + [HOST] * 3)
    assert once == [HOST] * 7
    twice = heads([HOST] * 3 + [little(3)] * 2 + [HOST])
    assert twice[:5] == [HOST] * 4 + [slow(3)]
    # Nor is it in the list meanwhile.
    verdict, now = Verdict(settled=HOST, steady_steps=50), Moment(unix_s=1.0, step=90, steady_steps=50)
    assert list(steady_verdict(verdict, [little(3), LAUNCH], now)[1]) == [HOST, LAUNCH]
    # Of another rank there is nothing yet, and none before the first headline.
    assert slow(2) not in heads([HOST] * 3 + [little(3), little(2), HOST])
    assert [one.kind for one in heads([little(3)])] == [Kind.UNKNOWN]
    # Evidence that is clear needs no other look.
    assert heads([HOST] * 3 + [slow(3)])[3] == slow(3)


@pytest.mark.parametrize(("newest_step", "shown"), [(90, False), (92, True)])
def test_hosts_that_longer_lines_show_late_are_the_headline_once_another_line_shows_it(
    newest_step: int, shown: bool
) -> None:
    late = Finding(
        kind=Kind.LATE_HOSTS, confidence=0.6, gain_ratio=0.3, since_step=84, longer_for_s=9.0, tentative=True
    )
    verdict, moment = Verdict(settled=HOST, steady_steps=50), Moment(unix_s=1.0, step=90, steady_steps=50)
    moment = replace(moment, newest_step=90, step_s=1.0)
    verdict, found = steady_verdict(verdict, [late], moment)
    assert found[0] == HOST
    moment = replace(moment, unix_s=3.0, step=newest_step, newest_step=newest_step)
    _, found = steady_verdict(verdict, [late], moment)
    assert found[0] == (replace(late, tentative=False) if shown else HOST)


@pytest.mark.parametrize(("gain", "shown"), [(0.3, True), (0.34, False)])
def test_a_second_look_may_find_the_last_of_several_whose_hosts_are_late(gain: float, shown: bool) -> None:
    """As in recording random40: ranks 0 and 2 load slowly, and rank 2 comes last."""
    late = Finding(
        kind=Kind.LATE_HOSTS, confidence=0.6, gain_ratio=0.3, ranks=(0, 2), since_step=84, tentative=True
    )
    last = replace(slow(2), gain_ratio=gain)
    assert heads([HOST] * 3 + [late, last])[4] == (replace(late, tentative=False) if shown else last)
    other = replace(last, culprits=slow(1).culprits)
    assert heads([HOST] * 3 + [late, other])[4] == other


def test_a_second_look_may_find_the_late_rank_with_others_that_wait_for_it():
    together = Finding(kind=Kind.STRAGGLER, confidence=0.4, gain_ratio=0.2, ranks=(1, 3))
    assert heads([HOST] * 3 + [little(3), together])[4] == slow(3)
    assert heads([HOST] * 3 + [little(2), together])[4] != slow(2)


def test_a_rank_is_not_blamed_first_for_steps_that_are_over():
    over = replace(slow(3), may_be_over=True)
    assert heads([HOST] * 3 + [over] * 5) == [HOST] * 8
    # It goes on being named where it was before.
    assert heads([HOST] * 3 + [slow(3)] * 3 + [over] * 2)[-1] == over


@pytest.mark.parametrize(("newest_step_s", "held"), [(0.4, False), (0.44, False), (0.46, True), (None, True)])
def test_blame_is_held_over_a_gap_in_the_evidence_and_not_once_steps_are_short_again(
    newest_step_s: float | None, held: bool
):
    # Steps took 0.4 s before and take 0.5 s with it.
    blamed = replace(slow(3), step_s=0.5, longer_for_s=4.0)
    verdict = Verdict(settled=HOST, steady_steps=50)
    for at_s in range(3):
        now = Moment(unix_s=at_s, step=100 + 2 * at_s, steady_steps=50, step_s=0.4, newest_step_s=0.5)
        verdict, found = steady_verdict(verdict, [blamed], now)
    for at_s in (3, 4):
        step = 102 + 2 * at_s
        now = Moment(unix_s=at_s, step=step, steady_steps=50, step_s=0.4, newest_step_s=newest_step_s)
        verdict, found = steady_verdict(verdict, [HOST], now)
        assert at_s > 3 or found[0].kind is Kind.STRAGGLER
    assert found[0].kind is (Kind.STRAGGLER if held else Kind.HOST_BOUND)


def test_of_two_causes_that_cost_about_as_much_the_headline_stays_the_one():
    """As in recordings random82 and random12: which one leads is by a few hundredths, or its evidence."""
    idle = Finding(kind=Kind.HOST_BOUND, confidence=0.4, gain_ratio=0.24)
    stage = Finding(kind=Kind.PIPELINE_IMBALANCE, confidence=0.9, gain_ratio=0.118)
    both = [stage, idle]
    assert set(heads([idle] * 20 + [both] * 30)) == {idle}
    assert heads([idle] * 20 + [both] * int(8 * HOLD_S + 1))[-1] == stage
    # The other one's evidence has gaps, or ends.
    assert set(heads([idle] * 20 + [both] * 20 + [stage] * int(HOLD_S - 1))) == {idle}
    assert heads([idle] * 20 + [both] * 20 + [stage] * int(HOLD_S))[-1] == stage
    for news in (
        replace(stage, gain_ratio=0.2),
        replace(stage, since_step=100),
        replace(stage, kind=Kind.HOST_CONTENTION),
    ):
        said = heads([idle] * 20 + [[news, idle]] * int(HOLD_S + 2))
        assert said[-1] == news


def test_what_a_blamed_rank_caused_is_no_headline_while_steps_of_its_fault_are_judged():
    """As in recording random67: a window with steps of the fault has one stage busier than the others."""
    stage = Finding(kind=Kind.PIPELINE_IMBALANCE, confidence=0.6, gain_ratio=0.15)
    rank = replace(slow(0), effects=(Effect(kind=Kind.PIPELINE_IMBALANCE),))
    for fault, least in ((rank, 8 * HOLD_S), (slow(0), HOLD_S)):
        said = heads([COMPUTE] * 20 + [fault] * 6 + [stage] * 90)
        kinds = [one.kind for one in said]
        assert kinds.index(stage.kind) - 26 == pytest.approx(least, abs=3)
        assert changes(said[6:]) == 3
    # Nor is it listed: in the summary of a whole job it is no cause of its own, as in recording random65.
    verdict = Verdict()
    for at_s in range(40):
        look = [COMPUTE] if at_s < 20 else [rank] if at_s < 26 else [stage, LAUNCH]
        now = Moment(unix_s=at_s, step=100 + at_s, steady_steps=100, step_s=1.0)
        verdict, findings = steady_verdict(verdict, look, now)
        assert stage not in findings
    assert findings == (COMPUTE, LAUNCH)


def test_stalls_of_unknown_ranks_are_those_of_the_blamed_one_while_that_is_held():
    """As in recording tp2dp2: the fault ends, and its last stalls are known before whose they were."""
    said = heads([COMPUTE] * 12 + [slow(0)] * 3 + [STALLS] + [COMPUTE] * 6)[6:]
    kinds = [Kind.COMPUTE_BOUND] * 6 + [Kind.STRAGGLER] * 6 + [Kind.COMPUTE_BOUND] * 4
    assert [one.kind for one in said] == kinds
    assert heads([COMPUTE] * 12 + [slow(0)] * 3 + [STALLS] * 9)[-1] == STALLS


def test_one_of_several_ranks_whose_hosts_are_late_is_not_blamed_for_all_of_it_by_one_odd_look():
    """As in recording random40: loaders of two ranks are slow, and peers wait for the later one."""
    both = Finding(kind=Kind.LATE_HOSTS, confidence=0.6, gain_ratio=0.2, since_step=90, ranks=(0, 3))
    assert {one.kind for one in heads([both] * 3 + [slow(3), both])} == {Kind.LATE_HOSTS}
    assert heads([both] * 3 + [slow(3)] * 4)[-1].kind is Kind.STRAGGLER
    for other in (slow(1), replace(slow(3), gain_ratio=0.3)):
        assert heads([both] * 3 + [other])[-1] == other
    assert heads([replace(both, ranks=(3,))] * 3 + [slow(3)] * 9)[-1].kind is Kind.STRAGGLER


def test_what_costs_nothing_is_replaced_as_before_by_what_the_gpus_do():
    copies = Finding(kind=Kind.HOST_TRANSFER, confidence=0.6)
    assert heads([copies] * 20 + [[COMPUTE, copies]] * int(HOLD_S + 1))[-1] == COMPUTE


@pytest.mark.parametrize(("restarted", "held"), [(False, True), (True, False)])
def test_a_headline_is_held_where_operations_show_longer_steps_than_before(restarted: bool, held: bool):
    """As in recording random128: ten of what were steps are micro-batches of each step."""
    verdict, said = Verdict(), []
    looks = [(371, 95, 0.09), (387, 95, 0.09), (36, 3, 0.9), (37, 4, 0.9)]
    for at, (step, steady, step_s) in enumerate(looks):
        began_unix_s = 2.0 if restarted and step < 100 else -90.0
        now = Moment(
            unix_s=float(at),
            step=None,
            steady_steps=steady,
            step_s=step_s,
            newest_step=step,
            began_unix_s=began_unix_s,
        )
        verdict, found = steady_verdict(verdict, [UNKNOWN if at else LAUNCH], now)
        said.append(found[0])
    assert said == [LAUNCH] * (4 if held else 2) + [UNKNOWN] * (0 if held else 2)
