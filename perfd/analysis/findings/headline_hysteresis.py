"""The headline of a live job, which a round changes only once other evidence has lasted.

Shares near a threshold cross it in one round and are back in the next; the headline follows only what costs
far more. A finding that blames a rank, or that began with a change of the step time, already needs several
steps of evidence: it is the headline at once. If rounds found it for a second, it is held for a few more
steps, because the evidence has gaps in a window that a fault just fills; then the previous headline returns.
After a single round it is held for a moment, if the rank costs a tenth of a step and no other one is late.
In such a gap a rank that costs less takes its place only if it just became slow. One that names no rank, that
hosts are late, is held after a single round, too. So are loaders that became slow, until steps are short.

That nothing limits the job and that computation does differ by a threshold, not by a change in the job: one
of these replaces another only once it lasted eight times as long, and so does an unknown cause a share of
time while steps take as long as before, one of two causes the other that costs about as much, and what a
blamed rank caused the headline before it, since steps of its fault are judged for some time. An unknown cause
replaces any other headline after twice as long: by then a fault that lowers the activity of GPUs is found.
Without another step nothing changes that names no rank. An unknown cause is the absence of evidence, as
before the first samples of a job whose steps are short: it is replaced after half as long. The first verdict
is not that nothing else limits the job before rounds found that for as long: shares of time are of seconds
before the first step, too.

If steps became longer before the headline was found, that is the same change, of which a later round may show
less: only that hosts are late, not that they wait for data, or which rank is late. The headline stays. Or
a rank known by its role proves to be slow itself: that is the headline once rounds found it for a while.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from perfd.analysis.findings.advice import MORE_STEPS
from perfd.analysis.findings.causal_graph import EXPLAINS
from perfd.analysis.findings.finding import Finding
from perfd.analysis.findings.finding_kind import COMPUTATION, FAULTS, Kind
from perfd.analysis.findings.lasting_fault import is_over_by_steps
from perfd.analysis.findings.same_fault import (
    AS_MUCH,
    are_its_stalls,
    far_costlier,
    has_effect,
    input_became_slow,
    is_last_of,
    is_lesser_stall,
    is_same,
    may_be_over,
    mixes,
    seen_otherwise,
    shows_less,
    was_its_effect,
    weight,
    with_figures,
    with_others,
)
from perfd.analysis.findings.tentative_blame import CONFIRMED_S, without_tentative
from perfd.analysis.findings.verdict import Moment, Verdict, apart
from perfd.thresholds import THRESHOLDS

_NO_CAUSE = COMPUTATION | {Kind.UNKNOWN}
_AT_ONCE = frozenset({Kind.HANG, Kind.STRAGGLER, Kind.LATE_HOSTS, Kind.ANALYSIS_FAILED})
_OVER_AT_ONCE = frozenset({Kind.HANG, Kind.ANALYSIS_FAILED})
_LITTLE_EVIDENCE = 2.0
"""Times as long as others a headline lasts if what replaces it has no more evidence of a cause. Chosen."""
_NO_CHANGE = 8.0
"""Times as long as others that one of `COMPUTATION` lasts beside another: about a minute. Chosen."""
_NO_EVIDENCE = 0.5
"""Times as long as others that an unknown cause lasts once rounds find one. Chosen."""
_OF_ALL_HOSTS = frozenset({Kind.DATA_LOADING, Kind.LATE_HOSTS})
_MORE = 1.5
"""Times what the headline costs that another one costs which takes its place, if both are found. Chosen."""
_OF_PAST = frozenset({Kind.HOST_CONTENTION})
"""They rest on medians over half a minute: even about one rank they are not news at once."""
_GAP_S = 2.0
"""How long rounds may miss what they found before and after, or what is of the newest step. Chosen."""
_NOTABLE = 0.1
"""Of a step: a rank that costs so much in one round is not dropped by the next one that misses it. Chosen."""
_SAME_CHANGE_STEPS = 2
"""Steps by which the start of a change may move later once more of it is known."""


def steady_verdict(
    prior: Verdict, found: Sequence[Finding], now: Moment
) -> tuple[Verdict, Sequence[Finding]]:
    """The verdict after this round, and its findings with that headline at the front.

    `found` has at least one finding, the one to act on first at the front. The headline changes at once
    while steps are few, if the job began anew, a rank is blamed, steps became longer, culprits that rounds
    found only for a moment are no longer found, or another cause costs far more; otherwise once others were
    found for some steps and seconds in a row.
    """
    if now.steady_steps and not _began_anew(prior.newest, now):
        now = replace(now, steady_steps=max(now.steady_steps, prior.steady_steps))
    prior, found = without_tentative(prior, found, now)
    if prior.settled is not None and _shows_nothing_new(prior, found[0], now):
        return prior, _at_front(prior.settled, found)
    verdict, findings = _verdict(prior, found, now)
    newest = prior.newest if now.newest_step == prior.newest.newest_step else now
    verdict = replace(
        verdict,
        suspected=prior.suspected,
        suspected_since=prior.suspected_since,
        was_blamed=verdict.blamed or prior.was_blamed,
        was_blamed_last=prior.was_blamed_last if verdict.blamed is None else now,
    )
    return replace(verdict, newest=newest, steady_steps=now.steady_steps), findings


def _began_anew(newest: Moment, now: Moment) -> bool:
    """Whether the job did since the round that had the newest step.

    Micro-batches that operations showed as steps are counted as the steps that they turn out to be part of.
    """
    recounted = newest.step is None and now.step is None and newest.began_unix_s == now.began_unix_s
    return (now.newest_step or 0) < (newest.newest_step or 0) and not recounted


def _shows_nothing_new(prior: Verdict, head: Finding, now: Moment) -> bool:
    """Whether the job has made no step since a headline that blames no rank, nor is one blamed now.

    Blame ends by time. What just began may show before the next line; that none comes is news of the unknown.
    """
    stands = now.newest_step is not None and now.newest_step == prior.newest.newest_step
    # Samples of GPUs in a step are known a little later than the log's line of it.
    sampled = head.since_step is not None and now.unix_s - prior.newest.unix_s <= _GAP_S
    blames = head.kind in _AT_ONCE - (set() if sampled else {Kind.LATE_HOSTS}) or bool(head.culprits)
    unknown = prior.settled is not None and prior.settled.kind is head.kind is Kind.UNKNOWN
    at_once = blames or unknown or _just_began(head, now)
    return stands and prior.blamed is None and not (at_once or _shows_why(head, prior.settled))


def _shows_why(head: Finding, settled: Finding | None) -> bool:
    """Whether a capture was read that has the cause of what the headline only suspects."""
    measured = settled is not None and (head.certainty, settled.certainty) == ("measured", "possible")
    return measured and settled is not None and settled.kind in EXPLAINS.get(head.kind, {})


def _verdict(prior: Verdict, found: Sequence[Finding], now: Moment) -> tuple[Verdict, Sequence[Finding]]:
    since = prior.cleared_since or now
    still_blamed = _still_blamed(prior, found, now)
    if still_blamed is not None:
        blamed, findings = still_blamed
        return replace(prior, blamed=blamed, cleared_since=since), findings
    settled = prior.settled
    if settled is not None and _last_of_late_hosts(prior, settled, found[0], now):
        return replace(prior, missed_since=prior.missed_since or now), _at_front(settled, found[1:])
    if _explained(prior.settled, prior.settled_since, found[0]):
        found = (with_figures(prior.settled, found[0]), *found[1:])
    head = found[0]
    if _slow_input_began(prior, head, now) or (_blames_rank(head) and not is_lesser_stall(head, settled)):
        return _blaming(prior, head, now), found
    verdict, findings = _settled(prior, found, now)
    over = _young(prior.blamed_since or now, now) or _cleared(since, now)
    if prior.blamed is None or over or has_effect(head, prior.blamed):
        return verdict, findings
    still, otherwise = _found_still(prior.blamed, found)
    notable = (prior.blamed.gain_ratio or 0.0) >= _NOTABLE and not head.concerned_ranks
    gap = notable and now.unix_s - since.unix_s <= _GAP_S
    seldom = not prior.confirmed and bool(prior.blamed.culprits) and not gap
    least_s = _GAP_S if input_became_slow(prior.blamed) else CONFIRMED_S
    ended = is_over_by_steps(prior.blamed, now.newest_step_s) and apart(since, now, 0, least_s)
    once = still is None and not otherwise and (seldom or ended)
    if once or (still is not None and far_costlier(head, still)):
        return verdict, findings
    blamed = still or prior.blamed
    shown = blamed if otherwise or still is not None else may_be_over(blamed)
    verdict = replace(
        verdict,
        blamed=blamed,
        blamed_since=prior.blamed_since,
        confirmed=prior.confirmed,
        cleared_since=since,
    )
    return verdict, _at_front(shown, findings)


def _still_blamed(
    prior: Verdict, found: Sequence[Finding], now: Moment
) -> tuple[Finding, Sequence[Finding]] | None:
    """What is still blamed, and the findings, if a round's first one is of the same fault or costs less."""
    blamed, head, held = prior.blamed, found[0], not _cleared(prior.cleared_since or now, now)
    if blamed is None:
        return None
    explained = _explained(blamed, prior.blamed_since, head)
    if input_became_slow(blamed) and (explained or shows_less(blamed, head)):
        longer_for_s = head.longer_for_s or blamed.longer_for_s
        shown = replace(with_figures(blamed, head), longer_for_s=longer_for_s)
        return shown, _at_front(shown, found[1:])
    shown_slow = (blamed.kind, head.kind) == (Kind.LATE_HOSTS, Kind.STRAGGLER)
    if seen_otherwise(blamed, head, more=held) and (held or not shown_slow):
        # One fault keeps its name, and in time has the figures of what still finds it.
        shown = blamed if held else replace(with_figures(blamed, head), evidence=head.evidence)
        return shown, _at_front(shown, found[1:])
    effect = prior.confirmed and (explained or are_its_stalls(blamed, head))
    if held and is_same(blamed, head) and mixes(blamed, head):
        return blamed, _at_front(blamed, found)
    if held and (effect or with_others(blamed, head) or _is_last_of(blamed, head, prior, now)):
        return blamed, _at_front(may_be_over(blamed), found[1:])
    less = held and prior.confirmed and _costs_less(blamed, head, now)
    return (blamed, _at_front(may_be_over(blamed), found)) if less else None


def _is_last_of(blamed: Finding, head: Finding, prior: Verdict, now: Moment) -> bool:
    """Whether a rank may be just the last of several whose hosts rounds a moment before found late."""
    since = prior.cleared_since or now
    return is_last_of(blamed, head) and now.unix_s - since.unix_s <= _GAP_S


def _costs_less(blamed: Finding, head: Finding, now: Moment) -> bool:
    """Whether a round finds another rank, not the blamed one, which costs less and did not just begin."""
    other = bool(blamed.culprits) and _blames_rank(head) and not is_same(blamed, head)
    news = head.kind in _OVER_AT_ONCE or _just_began(head, now)
    return other and not news and weight(head) < (1 - AS_MUCH) * weight(blamed)


def _found_still(blamed: Finding, found: Sequence[Finding]) -> tuple[Finding | None, bool]:
    """The same finding behind a round's first one, and whether there is another one of that rank's fault."""
    still = next((one for one in found if is_same(one, blamed)), None)
    return still, any(seen_otherwise(blamed, one, more=False) for one in found)


def _blaming(prior: Verdict, head: Finding, now: Moment) -> Verdict:
    if prior.settled is not None and is_same(prior.settled, head):
        # Rounds before found the fault by shares of the time, as what limits the job all along.
        prior = replace(prior, settled=prior.earlier, settled_since=None)
    none = replace(prior, blamed=None, blamed_since=None, confirmed=False, cleared_since=None)
    if head.kind in _OVER_AT_ONCE:
        return none
    again = prior.blamed is not None and is_same(prior.blamed, head)
    since = (prior.blamed_since if again else None) or now
    confirmed = again and (prior.confirmed or apart(since, now, 1, CONFIRMED_S))
    # The first headline that blames no rank does not begin to wait once this is over.
    seen_since = now if prior.settled is None and prior.missed_since is None else _missed_since(prior, now)
    return replace(none, blamed=head, blamed_since=since, confirmed=confirmed, missed_since=seen_since)


def _missed_since(prior: Verdict, now: Moment) -> Moment | None:
    """Since when rounds find another headline than the settled one, without the time of slow input."""
    since, last = prior.missed_since, prior.was_blamed_last
    if since is None or last is None or prior.blamed is None or not input_became_slow(prior.blamed):
        return since
    return replace(since, unix_s=since.unix_s + now.unix_s - last.unix_s)


def _settled(prior: Verdict, found: Sequence[Finding], now: Moment) -> tuple[Verdict, Sequence[Finding]]:
    """The same for a headline that blames no rank."""
    head, settled = found[0], prior.settled
    since = prior.missed_since or now
    if settled is None or _young(since, now):
        return _first(prior, found, now, since)
    times = _patience(settled, head, blamed=prior.blamed is not None)
    still = next((one for one in found if is_same(one, settled)), None)
    unknown = head.kind is Kind.UNKNOWN and prior.blamed is None and _differs_by_bound(prior, now)
    left_over = settled.kind is not Kind.UNKNOWN and _is_left_of_fault(prior, head, now)
    if unknown or left_over or is_lesser_stall(head, settled):
        times = _NO_CHANGE
    alike = now if still is not None and _weighs_as_much(head, still) else prior.alike
    lasted = _lasted(since, now, _NO_CHANGE) or _lasted(alike or since, now, times)
    if _just_began(head, now) or lasted:
        return _found(prior, head, now), found
    if is_same(settled, head):
        if not mixes(settled, head):
            return _found(prior, head, now), found
        return replace(_found(prior, settled, now), missed_since=since), _at_front(settled, found)
    blamed_before = still is None and bool(settled.culprits)
    # Evidence has gaps, so what a round misses counts as found last, unless its cause is found instead.
    counted = still if settled.kind in EXPLAINS.get(head.kind, {}) else still or settled
    effect = left_over or was_its_effect(head, settled)
    if blamed_before or (far_costlier(head, counted) and not effect):
        return _found(prior, head, now), found
    held = still or settled
    shown = found[1:] if left_over else found
    return replace(_found(prior, held, now), missed_since=since, alike=alike), _at_front(held, shown)


def _first(
    prior: Verdict, found: Sequence[Finding], now: Moment, since: Moment
) -> tuple[Verdict, Sequence[Finding]]:
    """There is nothing to hold before the first verdict."""
    head = found[0]
    if head.kind is Kind.UNKNOWN and _young(since, now):
        return Verdict(), found
    if prior.settled is None and head.kind in COMPUTATION and not _lasted(since, now, _NO_EVIDENCE):
        return Verdict(missed_since=since), (_too_early(head), *found[1:])
    return _found(prior, head, now), found


def _too_early(head: Finding) -> Finding:
    """The first seconds of a job that seems to compute well."""
    early = "It has trained for too short a time to rule out other limits."
    return Finding(kind=Kind.UNKNOWN, confidence=0.0, evidence=(*head.evidence, early), advice=MORE_STEPS)


def _found(prior: Verdict, settled: Finding, now: Moment) -> Verdict:
    again = prior.settled is not None and is_same(prior.settled, settled)
    return Verdict(
        settled=settled,
        settled_since=(prior.settled_since if again else None) or now,
        earlier=prior.earlier if again else prior.settled,
    )


def _explained(headline: Finding | None, since: Moment | None, head: Finding) -> TypeGuard[Finding]:
    """Whether a round's first finding is an effect of the headline, from the same change in the job."""
    if headline is None or since is None or head.since_step is None:
        return False
    began = since.newest_step if since.step is None else since.step
    known = began if headline.since_step is None else headline.since_step + _SAME_CHANGE_STEPS
    return head.kind in EXPLAINS.get(headline.kind, {}) and known is not None and head.since_step <= known


def _last_of_late_hosts(prior: Verdict, settled: Finding, head: Finding, now: Moment) -> bool:
    """Whether a rank may be just the last of all, whose hosts rounds before found late.

    It costs as much as all of them do, of which rounds have had no evidence for a moment.
    """
    of_all = settled.kind in _OF_ALL_HOSTS and not settled.culprits and settled.since_step is not None
    since = prior.missed_since or now
    if not of_all or head.kind is not Kind.STRAGGLER or now.unix_s - since.unix_s > _GAP_S:
        return False
    again = prior.blamed is not None and is_same(prior.blamed, head)
    other = abs((head.gain_ratio or 0.0) - (settled.gain_ratio or 0.0))
    return not again and other <= AS_MUCH * (settled.gain_ratio or 0.0)


def _at_front(held: Finding, found: Sequence[Finding]) -> Sequence[Finding]:
    return (held, *(one for one in found if not is_same(one, held) and one.kind not in _NO_CAUSE))


def _blames_rank(finding: Finding) -> bool:
    if finding.kind in _AT_ONCE:
        return finding.kind is not Kind.STRAGGLER or bool(finding.culprits)
    return finding.kind not in _OF_PAST and any(culprit.kind == "rank" for culprit in finding.culprits)


def _slow_input_began(prior: Verdict, head: Finding, now: Moment) -> bool:
    """Whether a round finds loaders that just became slow, while no rank is blamed."""
    blamed = prior.blamed
    if not input_became_slow(head) or (blamed is not None and blamed.culprits):
        return False
    return _just_began(head, now) or (blamed is not None and is_same(blamed, head))


def _young(since: Moment, now: Moment) -> bool:
    began_anew = (now.step or 0) < (since.step or 0)
    return began_anew or now.steady_steps < THRESHOLDS.verdict_steady_steps_count


def _just_began(finding: Finding, now: Moment) -> bool:
    """Whether the change is as recent as a headline is held; an older one should have been found before."""
    least_s = THRESHOLDS.verdict_hold_steps_count * (now.step_s or 0.0)
    return (finding.longer_for_s or math.inf) <= max(THRESHOLDS.verdict_hold_s, least_s)


def _is_left_of_fault(prior: Verdict, head: Finding, now: Moment) -> bool:
    """Whether the blamed rank caused it, and steps of that time are judged still."""
    last = prior.was_blamed_last
    return last is not None and was_its_effect(head, prior.was_blamed) and not _lasted(last, now, _NO_CHANGE)


def _weighs_as_much(head: Finding, still: Finding) -> bool:
    """Whether a round finds the headline, too, and neither is news: which one costs more is chance."""
    began = head.longer_for_s is not None or head.since_step is not None
    news = began or head.kind in FAULTS or still.kind in EXPLAINS.get(head.kind, {})
    return not news and not is_same(head, still) and 0 < weight(head) <= _MORE * weight(still)


def _differs_by_bound(prior: Verdict, now: Moment) -> bool:
    """Whether steps take as long as when their cause was found: a share is only under its bound now."""
    since, settled = prior.settled_since, prior.settled
    if settled is None or settled.kind in _NO_CAUSE or settled.since_step is not None or since is None:
        return False
    known = since.step_s is not None and now.step_s is not None
    return known and abs((now.step_s or 0.0) - (since.step_s or 0.0)) <= AS_MUCH * (since.step_s or 0.0)


def _patience(settled: Finding | None, head: Finding, *, blamed: bool) -> float:
    """Times as long as others that the headline lasts; while a blamed rank is shown instead, no longer."""
    if settled is not None and settled.kind is Kind.UNKNOWN:
        return _NO_EVIDENCE
    if settled is not None and settled.kind in COMPUTATION and head.kind in COMPUTATION:
        return 1.0 if blamed else _NO_CHANGE
    little = head.kind is Kind.UNKNOWN or was_its_effect(head, settled)
    return _LITTLE_EVIDENCE if little and not blamed else 1.0


def _lasted(since: Moment, now: Moment, times: float = 1.0) -> bool:
    steps, seconds = THRESHOLDS.verdict_hold_steps_count, THRESHOLDS.verdict_hold_s
    return apart(since, now, times * steps, times * seconds)


def _cleared(since: Moment, now: Moment) -> bool:
    return apart(since, now, THRESHOLDS.blame_hold_steps_count, THRESHOLDS.blame_hold_s)
