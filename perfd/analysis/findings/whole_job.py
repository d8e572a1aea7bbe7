"""What cost a whole job the most of its time: one of its faults, or what limited it all along.

A fault that is over asks for nothing at once, and does not weigh more than other losses as it does while it
lasts: what it cost is a share of the job's time, and is compared as such.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from perfd.analysis.findings.fault_history import FaultPeriod, is_of_fault
from perfd.analysis.findings.finding import Finding
from perfd.analysis.findings.finding_kind import COMPUTATION, Kind
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
    neither steps nor faults are known.
    """
    costly = [one for one in faults if one.lost_s is not None]
    if found[0].kind in _FIRST or not (costly or steady):
        return found
    always = _always([one for one in found if not _is_listed(one, costly)], steady, faulty=bool(costly))
    named = sorted(_as_findings(costly, job_s) if job_s > 0 else (), key=_cost, reverse=True)
    named = [one for one in named if _cost(one) >= _LEAST_RATIO]
    if not named:
        return always or found
    head = named[0] if sum(map(_weight, named)) > max(map(_weight, always), default=0.0) else always[0]
    behind = [one for one in (*always, *named) if one is not head and one.kind not in _NO_CAUSE]
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
    return Finding(
        kind=worst.kind,
        confidence=worst.confidence or _LISTED,
        culprits=worst.culprits,
        evidence=(cost, *worst.evidence),
        advice=worst.advice,
        gain_ratio=share,
    )


def _key(finding: Finding) -> Hashable:
    return finding.kind, tuple(finding.culprits)


def _cost(finding: Finding) -> float:
    return finding.gain_ratio or 0.0


def _weight(finding: Finding) -> float:
    return finding.confidence * _cost(finding)


def _order(finding: Finding) -> tuple[bool, float]:
    return finding.gain_ratio is None, -_weight(finding)
