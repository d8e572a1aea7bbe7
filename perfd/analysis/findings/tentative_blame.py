"""A rank or hosts that one round finds late, by so little or so briefly that the next may not find them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfd.analysis.findings.advice import MORE_STEPS
from perfd.analysis.findings.finding import Finding
from perfd.analysis.findings.finding_kind import Kind
from perfd.analysis.findings.same_fault import is_last_of, is_same, with_others
from perfd.analysis.findings.verdict import Moment, Verdict, apart

CONFIRMED_S = 1.0
"""A rank that is blamed again after so long, and a step later, is not blamed by one odd round. Chosen."""
_NOT_YET = Finding(
    kind=Kind.UNKNOWN,
    confidence=0.0,
    evidence=("One rank or all hosts may be late, but by so little that a second round must confirm it.",),
    advice=MORE_STEPS,
)


def without_tentative(
    prior: Verdict, found: Sequence[Finding], now: Moment
) -> tuple[Verdict, Sequence[Finding]]:
    """A rank that one round found, with little evidence, is not blamed before another round finds it, too.

    Nor is one at all whose fault is over when it is found first: it is not what limits the job now.
    """
    one = next((one for one in found if one.tentative or _is_over(one)), None)
    if one is None:
        suspected, since = prior.suspected, prior.suspected_since or now
        prior = replace(prior, suspected=None, suspected_since=None)
        if suspected is None or _is_over(suspected) or not _finds_too(found[0], suspected):
            return prior, found
        late = apart(since, now, 1, CONFIRMED_S)
        return prior, [replace(suspected, tentative=False), *found[1:]] if late else found
    blamed = prior.blamed is not None and is_same(prior.blamed, one)
    again = prior.suspected is not None and is_same(prior.suspected, one)
    since = (prior.suspected_since if again else None) or now
    prior = replace(prior, suspected=one, suspected_since=since)
    if blamed or (not _is_over(one) and _is_confirmed(one, since, now)):
        return prior, [replace(each, tentative=False) for each in found]
    left = [each for each in found if each is not one]
    return prior, left or [prior.settled or _NOT_YET]


def _finds_too(head: Finding, suspected: Finding) -> bool:
    """Whether other evidence shows the same: that rank with others, or only the last of several."""
    return with_others(suspected, head) or is_last_of(suspected, head)


def _is_over(found: Finding) -> bool:
    return found.kind is Kind.STRAGGLER and found.may_be_over


def _is_confirmed(one: Finding, since: Moment, now: Moment) -> bool:
    """Whether the evidence is another one than that of the first round: of longer steps by a newer line."""
    by_lines = one.since_step is not None
    return apart(since, now, 1, CONFIRMED_S) and not (by_lines and now.newest_step == since.newest_step)
