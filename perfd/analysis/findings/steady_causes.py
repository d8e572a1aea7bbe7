"""What limited a job while nothing was wrong with it, as the rounds outside of its faults found it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfd.analysis.findings.causal_graph import acting_order, cause_of
from perfd.analysis.findings.finding import Culprit, Finding
from perfd.analysis.findings.finding_kind import COMPUTATION, Kind
from perfd.thresholds import THRESHOLDS

_NO_CAUSE = COMPUTATION | {Kind.UNKNOWN}
_MOST_OF_IT = 0.5
"""Of the time outside of faults, in which rounds found what is named behind the headline. Chosen."""
_MOST_CAUSES = 64
"""Of one job, those found for longest: a job has fewer than a handful."""


@dataclass(slots=True)
class _Cause:
    finding: Finding
    """As found last."""
    headline_s: float = 0.0
    found_s: float = 0.0


class SteadyCauses:
    """Sums up for how long rounds found what. Without a clock; one thread at a time."""

    def __init__(self) -> None:
        self._causes: dict[tuple[Kind, tuple[Culprit, ...]], _Cause] = {}
        self._looked_s = 0.0
        self.findings: Sequence[Finding] = ()
        """The headline shown for longest, and what was found beside it most of the time; empty before a
        headline would be held. Any thread may read it."""

    def add(self, found: Sequence[Finding], passed_s: float) -> None:
        """Take what a round without a fault found, the headline first, and the time since the last round."""
        if found[0].kind is Kind.UNKNOWN or found[0].may_be_over:
            return
        self._looked_s += passed_s
        for place, finding in enumerate(found):
            cause = self._causes.setdefault((finding.kind, tuple(finding.culprits)), _Cause(finding))
            cause.finding = finding
            cause.found_s += passed_s
            cause.headline_s += 0.0 if place else passed_s
        if len(self._causes) > _MOST_CAUSES:
            rarest = min(self._causes, key=lambda key: self._causes[key].found_s)
            del self._causes[rarest]
        if self._looked_s >= THRESHOLDS.verdict_hold_s:
            self.findings = self._longest()

    def _longest(self) -> Sequence[Finding]:
        first = max(self._causes.values(), key=lambda cause: cause.headline_s)
        behind = [
            cause.finding
            for cause in self._causes.values()
            if cause is not first
            and cause.found_s >= _MOST_OF_IT * self._looked_s
            and cause.finding.kind not in _NO_CAUSE
            and cause_of(cause.finding, [first.finding]) is None
        ]
        return (first.finding, *sorted(behind, key=acting_order))
