"""A fault that began while the job ran stays found for as long as steps are as long as it made them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from perfd.analysis.findings import (
    Culprit,
    Finding,
    Kind,
    LastingFault,
    is_over_by_steps,
    with_lasting_fault,
    without_last_of_late_hosts,
)

BEFORE_S, SINCE_S = 0.3, 0.4
GAIN = 1 - BEFORE_S / SINCE_S
NOTHING = Finding(kind=Kind.NONE, confidence=0.4)
HOST = Finding(kind=Kind.HOST_BOUND, confidence=0.4, gain_ratio=0.1)
LOADING = Finding(
    kind=Kind.DATA_LOADING,
    confidence=0.6,
    gain_ratio=GAIN,
    step_s=SINCE_S,
    longer_for_s=2.0,
    since_step=100,
    evidence=("Steps take 400 ms since step 100.",),
)


def slow(rank: int, *, gain: float = GAIN, longer_for_s: float | None = 2.0) -> Finding:
    return Finding(
        kind=Kind.STRAGGLER,
        confidence=0.6,
        culprits=(Culprit(kind="rank", id=rank),),
        gain_ratio=gain,
        step_s=SINCE_S,
        longer_for_s=longer_for_s,
    )


def played(
    looks: Iterable[tuple[Sequence[Finding], float | None]], *, first_step: int = 100
) -> list[Sequence[Finding]]:
    """What is found at looks a second apart; each has a round's findings and the newest steps' time."""
    prior: LastingFault | None = None
    said = []
    for at, (found, newest_s) in enumerate(looks):
        prior, shown = with_lasting_fault(
            prior, found, unix_s=1e9 + at, step=first_step + 3 * at, newest_step_s=newest_s
        )
        said.append(shown)
    return said


@pytest.mark.parametrize("fault", [LOADING, slow(1)])
def test_it_is_found_for_an_hour_after_the_steps_before_have_left_all_windows(fault: Finding) -> None:
    said = played([([fault], SINCE_S)] * 6 + [([NOTHING], SINCE_S)] * 3600)
    for shown in said[6:]:
        (head,) = shown
        assert (head.kind, head.culprits, head.may_be_over) == (fault.kind, fault.culprits, False)
        assert head.gain_ratio == pytest.approx(GAIN)
    assert said[-1][0].longer_for_s == pytest.approx(2.0 + 3600)
    assert said[-1][0].evidence[-1].endswith("steps still take 400.0 ms.")


def test_it_is_over_with_steps_nearer_to_those_before() -> None:
    small = replace(LOADING, gain_ratio=0.15)
    middle_s = (1 - 0.15 / 2) * SINCE_S
    looks = [([small], SINCE_S)] * 6 + [([NOTHING], middle_s + 0.001)]
    assert played(looks)[-1][0].kind is Kind.DATA_LOADING
    assert played([*looks, ([NOTHING], middle_s - 0.001), ([NOTHING], SINCE_S)])[-2:] == [[NOTHING]] * 2


@pytest.mark.parametrize(("less_ratio", "over"), [(0.09, False), (0.11, True)])
def test_it_is_over_with_clearly_shorter_steps_where_hosts_had_become_slower(
    less_ratio: float, over: bool
) -> None:
    # With it steps take 400 ms and 300 ms before, and now what is neither.
    large = slow(1, gain=0.31)
    said = played([([large], SINCE_S)] * 6 + [([NOTHING], (1 - less_ratio) * SINCE_S)])
    assert (said[-1] == [NOTHING]) is over


def test_for_half_a_minute_after_it_the_last_of_all_hosts_is_not_blamed_for_its_steps() -> None:
    last, other = slow(1, longer_for_s=None), slow(2, gain=0.2, longer_for_s=None)
    looks: list[tuple[Sequence[Finding], float | None]] = [([LOADING], SINCE_S)] * 6
    said = played([*looks, *[([last, NOTHING], BEFORE_S)] * 32])
    assert said[6] == said[36] == [NOTHING]
    assert said[37] == [last, NOTHING]
    (alone,) = played([*looks, ([last], BEFORE_S)])[-1]
    assert (alone.kind, alone.may_be_over) == (Kind.DATA_LOADING, True)
    assert played([*looks, ([other], BEFORE_S)])[-1] == [other]


def test_a_rank_that_makes_steps_long_again_after_it_is_blamed() -> None:
    last = slow(1, longer_for_s=None)
    looks: list[tuple[Sequence[Finding], float | None]] = [([LOADING], SINCE_S)] * 6
    said = played([*looks, ([last, NOTHING], BEFORE_S), ([last, NOTHING], SINCE_S)])
    assert said[-2:] == [[NOTHING], [last, NOTHING]]


def test_what_rounds_found_for_less_than_five_seconds_does_not_last() -> None:
    assert played([([LOADING], SINCE_S)] * 5 + [([NOTHING], SINCE_S)])[-1] == [NOTHING]
    assert played([([LOADING], SINCE_S)] * 6 + [([NOTHING], SINCE_S)])[-1][0].kind is Kind.DATA_LOADING


def test_what_peers_or_timers_show_is_over_when_they_no_longer_do() -> None:
    by_peers = slow(1, longer_for_s=None)
    assert played([([by_peers], SINCE_S)] * 9 + [([NOTHING], SINCE_S)])[-1] == [NOTHING]


def test_what_it_costs_is_what_it_added_to_a_step_that_other_things_make_longer_yet() -> None:
    shown = played([([LOADING], SINCE_S)] * 6 + [([HOST], 2 * SINCE_S)])[-1]
    assert shown[0].gain_ratio == pytest.approx((SINCE_S - BEFORE_S) / (2 * SINCE_S))
    assert shown[0].step_s == 2 * SINCE_S


def test_its_symptoms_are_no_problems_of_their_own_and_other_problems_stay() -> None:
    other = Finding(kind=Kind.OPTIMIZER, confidence=0.8, gain_ratio=0.05)
    costly = replace(other, kind=Kind.COMMUNICATION, gain_ratio=0.6)
    assert [one.kind for one in played([([LOADING], SINCE_S)] * 6 + [([HOST, other], SINCE_S)])[-1]] == [
        Kind.DATA_LOADING,
        Kind.OPTIMIZER,
    ]
    shown = played([([slow(1)], SINCE_S)] * 6 + [([costly], SINCE_S)])[-1]
    assert [one.kind for one in shown] == [Kind.STRAGGLER, Kind.COMMUNICATION]
    shown = played([([LOADING], SINCE_S)] * 6 + [([costly], SINCE_S)])[-1]
    assert [one.kind for one in shown] == [Kind.COMMUNICATION, Kind.DATA_LOADING]


@pytest.mark.parametrize(("gain", "lasts"), [(0.13, False), (0.12, True)])
def test_another_rank_that_costs_half_as_much_takes_its_place(gain: float, lasts: bool) -> None:
    shown = played([([slow(1)], SINCE_S)] * 6 + [([slow(0, gain=gain, longer_for_s=None)], SINCE_S)])[-1]
    assert ("rank 1" in [one.culprit_names for one in shown]) is lasts


@pytest.mark.parametrize(("longer", "blamed"), [(1.09, False), (1.11, True)])
def test_of_hosts_that_are_late_together_the_last_is_not_blamed_unless_steps_are_longer_yet(
    longer: float,
    blamed: bool,
) -> None:
    last = slow(1, longer_for_s=None)
    said = played([([LOADING], SINCE_S)] * 6 + [([last], longer * SINCE_S)] * 5)
    assert [one.kind for one in said[-1]] == [Kind.STRAGGLER if blamed else Kind.DATA_LOADING]


def test_late_hosts_of_the_same_change_do_not_replace_the_loaders_that_make_them_late() -> None:
    late = replace(LOADING, kind=Kind.LATE_HOSTS)
    kinds = [shown[0].kind for shown in played([([LOADING], SINCE_S)] * 6 + [([late], SINCE_S)] * 9)]
    assert kinds == [Kind.DATA_LOADING] * 15
    later = replace(late, since_step=105, step_s=SINCE_S / (1 - GAIN))
    assert played([([LOADING], SINCE_S)] * 6 + [([later], later.step_s)])[-1][0].kind is Kind.LATE_HOSTS


OF_TIME = replace(LOADING, gain_ratio=0.2, longer_for_s=None, since_step=None)
"""Shares of the last seconds, of which some had slow loaders."""


def test_shares_of_a_time_with_and_without_a_fault_neither_change_its_cost_nor_outlast_it() -> None:
    """As in recording pair111: loaders that cost 43% were said to cost 16% once they were over."""
    said = played([*[([LOADING], SINCE_S)] * 3, *[([OF_TIME], SINCE_S)] * 3, *[([OF_TIME], BEFORE_S)] * 3])
    assert [shown[0].kind for shown in said] == [Kind.DATA_LOADING] * 6 + [Kind.UNKNOWN] * 3
    assert [shown[0].gain_ratio for shown in said[:6]] == [pytest.approx(GAIN)] * 6
    assert "as short as before again" in said[-1][0].evidence[0]
    # What just began is another fault. As in recording trainer1, GPUs show it before the next line.
    again = replace(OF_TIME, longer_for_s=3.0)
    assert played([*[([LOADING], SINCE_S)] * 6, ([OF_TIME], BEFORE_S), ([again], BEFORE_S)])[-1] == [again]
    # Where no step is known they are all that there is.
    assert played([([LOADING], SINCE_S), ([OF_TIME], None)])[-1] == [OF_TIME]
    # Half a minute later they are of another time.
    late = played([*[([LOADING], SINCE_S)] * 6, *[([OF_TIME], BEFORE_S)] * 40])
    assert [shown[0].kind for shown in late[6:]].count(Kind.UNKNOWN) == 31


@pytest.mark.parametrize(("gain", "lasts"), [(0.09, True), (0.11, False)])
def test_a_rank_that_peers_show_for_more_than_steps_are_still_longer_by_was_late_in_earlier_ones(
    gain: float, lasts: bool
) -> None:
    """As in recording random29: steps had been short for 5 s, and waits still showed the rank."""
    peers = slow(1, gain=gain, longer_for_s=None)
    short_s = BEFORE_S / 0.95
    said = played([*[([slow(1)], SINCE_S)] * 6, *[([peers, HOST], short_s)] * 2])
    assert [one.kind for one in said[-1]] == (
        [Kind.STRAGGLER, Kind.HOST_BOUND] if lasts else [Kind.HOST_BOUND]
    )


@pytest.mark.parametrize(("newest_s", "over"), [(0.324, True), (0.326, False), (None, False)])
def test_steps_rule_out_a_rank_that_peers_show_only_where_they_are_nearly_as_short_as_without_it(
    newest_s: float | None, over: bool
) -> None:
    assert is_over_by_steps(slow(1, longer_for_s=None), newest_s) is over


@pytest.mark.parametrize(("newest_s", "over"), [(0.349, True), (0.361, False), (None, False)])
def test_steps_before_a_fault_show_its_end_once_most_of_what_it_added_is_gone(
    newest_s: float | None, over: bool
) -> None:
    assert is_over_by_steps(slow(1), newest_s) is over
    assert not is_over_by_steps(replace(slow(1, longer_for_s=None), step_s=None), newest_s)


def test_loaders_that_become_slower_yet_cost_all_that_steps_became_longer_by() -> None:
    """As in recording pair111: a second change within the fault, by a tenth."""
    worse = replace(LOADING, gain_ratio=0.1, step_s=SINCE_S / 0.9, since_step=120)
    (shown,) = played([*[([LOADING], SINCE_S)] * 6, ([worse], worse.step_s)])[-1]
    assert shown.gain_ratio == pytest.approx(1 - BEFORE_S * 0.9 / SINCE_S)
    assert shown.since_step == LOADING.since_step
    over = played([*[([LOADING], SINCE_S)] * 6, ([worse], worse.step_s), ([NOTHING], SINCE_S)])[-1]
    assert over[0].kind is Kind.DATA_LOADING


def test_ranks_that_stall_together_are_not_taken_for_the_last_of_all_hosts_that_were_late() -> None:
    """As in recording random139: two ranks stall after slow loaders, and cost as much as these did."""
    both = replace(slow(0, longer_for_s=None), culprits=(*slow(0).culprits, *slow(2).culprits))
    after = [*[([LOADING], SINCE_S)] * 6, *[([NOTHING], BEFORE_S)] * 3]
    assert played([*after, ([both], BEFORE_S)])[-1] == [both]
    assert played([*after, ([slow(0, longer_for_s=None)], BEFORE_S)])[-1][0].may_be_over


def test_a_job_that_began_anew_has_no_fault_of_before() -> None:
    prior = LastingFault(finding=LOADING, began_unix_s=0.0, seen_unix_s=60.0)
    anew = with_lasting_fault(prior, [NOTHING], unix_s=70.0, step=3, newest_step_s=SINCE_S)
    assert anew == (None, [NOTHING])


def test_while_no_step_is_known_nothing_is_said_and_nothing_forgotten() -> None:
    said = played([([LOADING], SINCE_S)] * 6 + [([NOTHING], None), ([NOTHING], SINCE_S)])
    assert said[-2] == [NOTHING]
    assert said[-1][0].kind is Kind.DATA_LOADING


def test_a_rank_that_peers_show_later_is_found_in_the_gaps_of_that_evidence_until_steps_are_short() -> None:
    """As in recording budgeted2: batches of unequal length, and a slow rank that some rounds do not show."""
    peers = replace(slow(1, gain=0.2, longer_for_s=None), confidence=0.8)
    looks = [([slow(1)], SINCE_S)] * 2 + [([peers], SINCE_S)] * 6 + [([NOTHING], SINCE_S)] * 4
    said = played([*looks, ([peers], SINCE_S), ([NOTHING], SINCE_S), ([NOTHING], BEFORE_S)])
    assert [shown[0].kind for shown in said] == [Kind.STRAGGLER] * 14 + [Kind.NONE]
    gap = said[8][0]
    assert gap.gain_ratio == pytest.approx(GAIN)


def test_a_rank_that_peers_showed_is_over_once_they_do_not_for_half_a_minute() -> None:
    peers = replace(slow(1, longer_for_s=None), confidence=0.8)
    looks = [([slow(1)], SINCE_S)] * 2 + [([peers], SINCE_S)] * 6 + [([NOTHING], SINCE_S)] * 60
    said = [shown[0].kind for shown in played(looks)]
    assert said == [Kind.STRAGGLER] * (8 + 30) + [Kind.NONE] * 30


def test_a_rank_whose_steps_are_shorter_than_when_it_was_found_first_is_not_over_while_peers_show_it() -> (
    None
):
    first = replace(slow(1, gain=0.7), step_s=1.0)
    peers = replace(slow(1, gain=0.2, longer_for_s=None), confidence=0.8)
    said = played([([first], 1.0)] * 2 + [([peers], SINCE_S)] * 6 + [([NOTHING], SINCE_S)] * 3)
    assert {shown[0].kind for shown in said} == {Kind.STRAGGLER}


@pytest.mark.parametrize(("newest_s", "most"), [(SINCE_S, GAIN), (0.5, 1 - BEFORE_S / 0.5)])
def test_by_the_waits_of_peers_it_costs_no_more_than_steps_became_longer_by(
    newest_s: float, most: float
) -> None:
    by_peers = slow(1, gain=0.6, longer_for_s=None)
    (found, beside) = played([*[([slow(1)], SINCE_S)] * 6, ([by_peers, HOST], newest_s)])[-1]

    assert found.gain_ratio == pytest.approx(most)
    assert found.evidence[-1].startswith("Steps took 300.0 ms before, so it costs at most")
    assert beside is HOST
    less = slow(1, gain=0.2, longer_for_s=None)
    assert played([*[([slow(1)], SINCE_S)] * 6, ([less], newest_s)])[-1] == [less]


UNKNOWN = Finding(kind=Kind.UNKNOWN, confidence=0.0, evidence=("perfd saw no GPU.",))
LONGER = replace(
    UNKNOWN,
    gain_ratio=GAIN,
    step_s=SINCE_S,
    since_step=100,
    evidence=("Steps take 400 ms since step 100.", *UNKNOWN.evidence),
)
"""What rounds find where steps became longer and nothing says why."""


def said_of(looks: Iterable[tuple[Sequence[Finding], float | None]]) -> list[str]:
    return [shown[0].sentence for shown in played(looks)]


def test_longer_steps_of_an_unknown_cause_are_said_for_an_hour() -> None:
    telemetry = Finding(kind=Kind.MISSING_TELEMETRY, confidence=0.9)
    said = played([([LONGER], SINCE_S)] * 6 + [([UNKNOWN, telemetry], SINCE_S)] * 3600)
    for shown in said[6:]:
        head, behind = shown
        assert (head.sentence, head.since_step, head.confidence) == (LONGER.sentence, 100, 0.0)
        assert head.gain_ratio == pytest.approx(GAIN)
        assert head.evidence == (*LONGER.evidence, "It goes on: steps still take 400.0 ms.")
        assert behind is telemetry
    assert said_of([([LONGER], SINCE_S)] * 5 + [([UNKNOWN], SINCE_S)])[-1] == UNKNOWN.sentence


def test_longer_steps_of_an_unknown_cause_are_over_once_steps_are_short_or_the_job_began_anew() -> None:
    looks = [([LONGER], SINCE_S)] * 6
    assert said_of([*looks, ([UNKNOWN], BEFORE_S), ([UNKNOWN], SINCE_S)])[-2:] == [UNKNOWN.sentence] * 2
    prior = LastingFault(finding=LONGER, began_unix_s=0.0, seen_unix_s=60.0)
    anew = with_lasting_fault(prior, [UNKNOWN], unix_s=70.0, step=3, newest_step_s=SINCE_S)
    assert anew == (None, [UNKNOWN])


@pytest.mark.parametrize("cause", [HOST, NOTHING, slow(1), slow(1, longer_for_s=None), LOADING])
def test_longer_steps_of_an_unknown_cause_are_not_said_beside_a_cause_nor_after_it(cause: Finding) -> None:
    looks = [([LONGER], SINCE_S)] * 6
    said = played([*looks, *[([cause], SINCE_S)] * 6, ([UNKNOWN], SINCE_S)])
    assert said[6:12] == [[cause]] * 6
    assert said[12][0].sentence != LONGER.sentence


@pytest.mark.parametrize("odd", [HOST, Finding(kind=Kind.HANG, confidence=0.9)])
def test_an_odd_round_and_a_hang_do_not_end_longer_steps_of_an_unknown_cause(odd: Finding) -> None:
    rounds = 60 if odd.kind is Kind.HANG else 4
    said = said_of([([LONGER], SINCE_S)] * 6 + [([odd], SINCE_S)] * rounds + [([UNKNOWN], SINCE_S)])
    assert said[6:] == [odd.sentence] * rounds + [LONGER.sentence]


def test_a_cause_that_began_before_goes_on_instead_of_an_unknown_one() -> None:
    said = played([([LOADING], SINCE_S)] * 6 + [([LONGER], SINCE_S)] * 9)
    assert {shown[0].kind for shown in said} == {Kind.DATA_LOADING}


def test_of_steps_that_became_longer_twice_the_first_time_is_not_forgotten() -> None:
    second = replace(LONGER, since_step=130, step_s=0.5, gain_ratio=0.2)
    looks = [([LONGER], SINCE_S)] * 6 + [([UNKNOWN], SINCE_S)] * 6 + [([second], 0.5)] * 9
    said = played([*looks, ([UNKNOWN], 0.5), ([UNKNOWN], SINCE_S)])
    assert said[12:21] == [[second]] * 9
    assert [shown[0].since_step for shown in said[21:]] == [100, 100]
    # After short ones that is another time.
    later = replace(LONGER, since_step=110)
    assert played([*looks[:6], ([later], SINCE_S), ([UNKNOWN], SINCE_S)])[-1][0].since_step == 110


def test_while_no_step_may_come_that_is_said_instead_of_longer_steps() -> None:
    prior = LastingFault(finding=LONGER, began_unix_s=0.0, seen_unix_s=60.0)
    stands = replace(UNKNOWN, evidence=("No step since step 195.",))
    prior, shown = with_lasting_fault(
        prior, [stands], unix_s=70.0, step=195, newest_step_s=SINCE_S, makes_steps=False
    )
    assert shown == [stands]
    _, shown = with_lasting_fault(prior, [UNKNOWN], unix_s=99.0, step=199, newest_step_s=SINCE_S)
    assert shown[0].sentence == LONGER.sentence


def test_the_last_rank_of_a_job_whose_longer_steps_have_an_unknown_cause_may_be_the_cause() -> None:
    prior = LastingFault(finding=LONGER, began_unix_s=0.0, seen_unix_s=60.0)
    last = slow(1, longer_for_s=None)
    assert without_last_of_late_hosts(prior, [last]) == [last]
    late = replace(prior, finding=LOADING)
    assert without_last_of_late_hosts(late, [last]) != [last]
