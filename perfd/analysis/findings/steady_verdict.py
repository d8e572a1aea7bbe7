"""The headline of a live job, which a look changes only once other evidence has lasted.

Shares near a threshold cross it in one look and are back in the next; the headline follows only what costs
far more. A finding that blames a rank already needs several steps of evidence: it is the headline as long as
it is found, and when it ends the one before it is back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfd.analysis.findings.finding import Finding
from perfd.analysis.findings.finding_kind import COMPUTATION, Kind
from perfd.thresholds import THRESHOLDS

_NO_CAUSE = COMPUTATION | {Kind.UNKNOWN}
_AT_ONCE = frozenset({Kind.HANG, Kind.STRAGGLER, Kind.LATE_HOSTS, Kind.ANALYSIS_FAILED})
_MOMENTARY = frozenset({Kind.THROTTLING, Kind.SLOW_LINK})


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a job was looked at."""

    unix_s: float
    step: int | None
    """The newest; None where that is known seconds later only, or never."""
    steady_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What looks at a job have found so far, for the next one."""

    settled: Finding | None = None
    """The headline that blames no rank, as it was found last; None before any."""
    missed_since: Moment | None = None
    """Since when looks find another one; None while they find it, or blame a rank."""


def steady_verdict(
    prior: Verdict, found: Sequence[Finding], now: Moment
) -> tuple[Verdict, Sequence[Finding]]:
    """The verdict after this look, and its findings with that headline at the front.

    `found` has at least one finding, the one to act on first at the front. The headline changes at once while
    steps are few and where the job began anew, where a rank is blamed, where culprits are not found any more,
    and where another cause costs far more; else once others were found for some steps and seconds in a row.
    """
    head, settled = found[0], prior.settled
    if _blames_rank(head):
        return Verdict(settled=settled, missed_since=prior.missed_since), found
    since = prior.missed_since or now
    if _young(since, now):
        # There is nothing to hold before the first verdict.
        return Verdict(settled=None if head.kind is Kind.UNKNOWN else head), found
    if settled is None or _same(settled, head) or _lasted(since, now):
        return Verdict(settled=head), found
    still = next((one for one in found if _same(one, settled)), None)
    blamed_before = still is None and bool(settled.culprits)
    if blamed_before or _far_costlier(head, still):
        return Verdict(settled=head), found
    held = still or settled
    rest = [one for one in found if not _same(one, held) and one.kind not in _NO_CAUSE]
    return Verdict(settled=held, missed_since=since), (held, *rest)


def _same(one: Finding, other: Finding) -> bool:
    return (one.kind, one.culprits) == (other.kind, other.culprits)


def _blames_rank(finding: Finding) -> bool:
    return finding.kind in _AT_ONCE or any(culprit.kind == "rank" for culprit in finding.culprits)


def _far_costlier(head: Finding, still: Finding | None) -> bool:
    """Than the one before, if that is found at all. Clocks and links are slow for a moment now and then."""
    more = _weight(head) - (0.0 if still is None else _weight(still))
    return head.kind not in _MOMENTARY and more >= THRESHOLDS.verdict_margin_ratio


def _weight(finding: Finding) -> float:
    return finding.confidence * (finding.gain_ratio or 0.0)


def _young(since: Moment, now: Moment) -> bool:
    began_anew = (now.step or 0) < (since.step or 0)
    return began_anew or now.steady_steps < THRESHOLDS.verdict_steady_steps_count


def _lasted(since: Moment, now: Moment) -> bool:
    steps = None if since.step is None or now.step is None else now.step - since.step
    enough = steps is None or steps >= THRESHOLDS.verdict_hold_steps_count
    return enough and now.unix_s - since.unix_s >= THRESHOLDS.verdict_hold_s
