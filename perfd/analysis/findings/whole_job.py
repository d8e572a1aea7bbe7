"""What cost a whole job the most of its time: one of its faults, or what limited it all along.

A fault that is over asks for nothing at once, and does not weigh more than other losses as it does while it
lasts: what it cost is a share of the job's time, and is compared as such.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from perfd.analysis.findings.fault_history import FaultPeriod, is_of_fault
from perfd.analysis.findings.finding import Finding
from perfd.analysis.findings.finding_kind import COMPUTATION, Kind
from perfd.analysis.findings.same_fault import weight
from perfd.formatting import duration, percent

_LEAST_RATIO = 0.02
"""Of the job's time: a fault that cost less is in the list of faults only. Chosen, as for a slow link."""
_NO_CAUSE = COMPUTATION | {Kind.UNKNOWN}
_LISTED = 0.6
"""The confidence of a fault whose rounds an earlier aggregator saw, which kept what it cost only."""
_CAUSE = 2
"""What a finding says if it names what costs time, above a computation and an unknown cause."""
_FIRST = frozenset({Kind.HANG, Kind.ANALYSIS_FAILED})
"""What stays the headline, whatever the job went through before."""


def of_whole_job(
    found: Sequence[Finding], steady: Sequence[Finding], faults: Sequence[FaultPeriod], *, job_s: float
) -> Sequence[Finding]:
    """The findings about a whole job, what cost most at the front.

    `found` rests on all that is known of the job now, `steady` is what rounds found outside of its faults,
    both with the headline first; `steady` may be empty. `job_s` is how long the job made steps, 0 where
    neither steps nor faults are known. What one more round had to confirm, which never came, is left out.
    """
    found = [one for one in found if not one.tentative] or steady or found
    costly = [one for one in faults if one.lost_s is not None]
    if found[0].kind in _FIRST or not (costly or steady):
        return found
    broken = [one for one in costly if one.kind is not Kind.UNKNOWN]
    always = _always([one for one in found if not _is_listed(one, broken)], steady, faulty=bool(broken))
    named = [one for one in _as_findings(costly, job_s) if _cost(one) >= _LEAST_RATIO] if job_s > 0 else []
    # An unknown cause is the headline only where nothing else is known.
    named.sort(key=lambda one: (one.kind is Kind.UNKNOWN, -_cost(one)))
    if not named:
        return always or found
    costlier = not always or sum(map(weight, named)) > max(map(weight, always))
    head = named[0] if costlier else always[0]
    if head.kind is named[0].kind is Kind.UNKNOWN:
        head = named[0] = _with_missing(named[0], head)
    behind = [*(one for one in always if one is not head and one.kind not in _NO_CAUSE), *named]
    behind = [one for one in behind if one is not head]
    return (head, *sorted(behind, key=_order))


def _is_listed(finding: Finding, faults: Sequence[FaultPeriod]) -> bool:
    return any(is_of_fault(finding, one) for one in faults)


def _always(found: Sequence[Finding], steady: Sequence[Finding], *, faulty: bool) -> Sequence[Finding]:
    """What limits the job besides its faults; what has no gain, such as missing telemetry, costs it nothing.

    The newest operations and samples may be those of a fault, so that beside one only what rounds without it
    found is taken. Of the same finding that about the whole job rests on more steps.
    """
    if not steady or (not faulty and _says(found[0]) >= _says(steady[0])):
        return found
    of_job = {_key(one): one for one in found}
    seen = [of_job.get(_key(one), one) for one in steady]
    keys = {_key(one) for one in steady}
    costless = [
        one for one in found if one.gain_ratio is None and _says(one) == _CAUSE and _key(one) not in keys
    ]
    return [*seen, *costless]


def _says(finding: Finding) -> int:
    """A cause says more than that the GPUs compute, and that more than nothing."""
    return 0 if finding.kind is Kind.UNKNOWN else 1 if finding.kind in COMPUTATION else _CAUSE


def _as_findings(faults: Sequence[FaultPeriod], job_s: float) -> list[Finding]:
    """One for each culprit, or kind where no rank is blamed, with all of its periods."""
    periods: dict[Hashable, list[FaultPeriod]] = {}
    for fault in faults:
        periods.setdefault(tuple(fault.culprits) or fault.kind, []).append(fault)
    return [_as_finding(ones, job_s) for ones in periods.values()]


def _as_finding(periods: Sequence[FaultPeriod], job_s: float) -> Finding:
    worst = max(periods, key=lambda one: one.lost_s or 0.0)
    lost_s = sum(one.lost_s or 0.0 for one in periods)
    share = min(1.0, lost_s / job_s)
    times = "; ".join(f"{one.period}: {percent(one.gain_ratio)} of a step" for one in periods)
    cost = f"It cost {percent(share)} of the time in which the job made steps, {duration(lost_s)} ({times})."
    unknown = worst.kind is Kind.UNKNOWN
    return Finding(
        kind=worst.kind,
        confidence=0.0 if unknown else worst.confidence or _LISTED,
        culprits=worst.culprits,
        evidence=(cost, *worst.evidence),
        advice=worst.advice,
        gain_ratio=share,
        since_step=worst.first_step if unknown else None,
    )


def _with_missing(longer: Finding, unknown: Finding) -> Finding:
    """That steps were longer, with what all that is known of the job lacks to say why."""
    cost, *seen = longer.evidence
    # What was found of the same change at the end rests on more steps.
    seen = [] if unknown.is_unexplained_growth else [one for one in seen if one not in unknown.evidence]
    return replace(longer, evidence=(cost, *seen, *unknown.evidence), advice=longer.advice or unknown.advice)


def _key(finding: Finding) -> Hashable:
    return finding.kind, tuple(finding.culprits)


def _cost(finding: Finding) -> float:
    return finding.gain_ratio or 0.0


def _order(finding: Finding) -> tuple[bool, float]:
    return finding.gain_ratio is None, -weight(finding)
