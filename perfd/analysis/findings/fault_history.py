"""What was wrong with a job while it ran, period by period: from when to when, by whom, and what it cost.

A live finding is about the newest steps, so a fault that is over leaves the findings. The history keeps it.
What limits a job all the time by its configuration is not a fault: what rounds found outside of faults is
kept apart. Steps that became longer for an unknown cause are a fault until a cause is found for that time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from perfd.analysis.findings.finding import LONGER_STEPS, Culprit, Finding
from perfd.analysis.findings.finding_kind import COMPUTATION, FAULTS, Kind
from perfd.analysis.findings.steady_causes import SteadyCauses
from perfd.analysis.findings.verdict import Moment
from perfd.formatting import duration, moment, percent
from perfd.thresholds import THRESHOLDS

_ALWAYS = FAULTS | {Kind.PERIODIC_STALL, Kind.GPU_CONTENTION}
_IF_BEGUN = frozenset({Kind.DATA_LOADING, Kind.HOST_CONTENTION})
"""Faults of one rank, or if they began while the job ran: otherwise it is how the job is set up."""
_SAME_CAUSE = frozenset({Kind.DATA_LOADING, Kind.LATE_HOSTS, Kind.HOST_CONTENTION})
"""Of all ranks, rounds find one of these first and another one with more evidence."""
_NO_CAUSE = COMPUTATION | {Kind.UNKNOWN, Kind.HANG}
_CAUSE_S, _SAME_CHANGE_S = 30.0, 10.0
"""How long after steps became longer a cause of that is found, and by how much the beginnings of both differ
where both are known. Chosen."""
_AS_MUCH = 0.5
"""Of what longer steps cost, from which on a finding is their cause. Chosen."""
_LEAST_S = 2.0
"""A fault that was found for less is one of an odd round. Chosen."""
_AWAY_S = 10.0
"""A fault that rounds do not find for longer, and for as many steps as blame is held, is over. Chosen."""
_LONGEST_LOOK_S, _LONGEST_LOOK_STEPS = 10.0, 3
"""No more than this, or so many steps, is counted between two looks: of a pause nothing is known. Chosen."""
_MOST_PERIODS = 64
"""Of one job, those that cost most: more than a person reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPeriod:
    """One fault, from its beginning to its end."""

    kind: Kind
    """Of several that rounds found for it, the one that was found for longest."""
    culprits: Sequence[Culprit] = ()
    began_unix_s: float
    seen_unix_s: float
    """When a round found it last."""
    lasts: bool = False
    """Whether the newest rounds find it."""
    first_step: int | None = None
    """None before any is known, and where steps were counted otherwise then."""
    last_step: int | None = None
    gain_ratio: float | None = None
    """The share of a step that it cost, the mean over the time that it was found; None if unknown."""
    lost_s: float | None = None
    """That share of the time that it lasted."""
    confidence: float = 0.0
    """Of the round that found it to cost most, as `evidence` and `advice`; 0 where that is not known."""
    evidence: Sequence[str] = ()
    advice: str = ""

    @property
    def lasted_s(self) -> float:
        """From its beginning to its end."""
        return self.seen_unix_s - self.began_unix_s

    @property
    def headline(self) -> str:
        """What it was and who caused it, in short: `slow rank: rank 2`."""
        names = ", ".join(map(str, self.culprits))
        name = LONGER_STEPS if self.kind is Kind.UNKNOWN else self.kind.short_name
        return f"{name}: {names}" if names else name

    @property
    def period(self) -> str:
        """From when to when, how long, and which steps."""
        end = "and goes on" if self.lasts else f"to {moment(self.seen_unix_s)}"
        return f"{moment(self.began_unix_s)} {end}, {duration(self.lasted_s)}{self._steps}"

    @property
    def cost(self) -> str:
        """What it cost, of a step and in all."""
        if self.gain_ratio is None:
            return "unknown"
        return f"{percent(self.gain_ratio)} of a step, {duration(self.lost_s)} in all"

    @property
    def sentence(self) -> str:
        """All of it, in words."""
        return f"{self.headline} ({self.period}): cost {self.cost}."

    @property
    def _steps(self) -> str:
        first, last = self.first_step, self.last_step
        if first is None:
            return "" if last is None else f", until step {last}"
        return f", step {first}" if last in {first, None} else f", steps {first} to {last}"


@dataclass(slots=True)
class _Open:
    """A fault that may go on."""

    period: FaultPeriod
    of_kind_s: dict[Kind, float] = field(default_factory=dict)
    costly_s: float = 0.0
    """For how long its cost was known."""
    most_ratio: float = -math.inf
    """What it cost by the round that found it to cost most."""


class FaultHistory:
    """Remembers the faults of one job. Without a clock; one thread at a time."""

    def __init__(self, earlier: Iterable[FaultPeriod] = ()) -> None:
        """`earlier` are those that an earlier aggregator remembered."""
        self._over: list[FaultPeriod] = [replace(one, lasts=False) for one in earlier]
        self._open: list[_Open] = []
        self._looked_unix_s: float | None = None
        self._newest_step: int | None = None
        self._stepped_unix_s = 0.0
        """When a round found that one first: rows of operations come seconds after their steps."""
        self.periods: Sequence[FaultPeriod] = tuple(self._over)
        """All that lasted for longer than a round errs, the oldest first. Any thread may read it."""
        self.steady = SteadyCauses()
        """What rounds found while nothing was wrong."""

    def take(self, found: Sequence[Finding], now: Moment) -> None:
        """Note the findings of a round, the one to act on first at the front.

        While the job makes no step for long, only that it hangs is news; of some jobs no step is ever known.
        """
        looked, longest_s = (
            self._looked_unix_s,
            max(_LONGEST_LOOK_S, _LONGEST_LOOK_STEPS * (now.step_s or 0.0)),
        )
        if now.newest_step is None or now.newest_step != self._newest_step:
            self._stepped_unix_s, self._newest_step = now.unix_s, now.newest_step
        stands = now.unix_s - self._stepped_unix_s > longest_s
        if stands and all(one.kind is not Kind.HANG for one in found):
            return
        passed_s = 0.0 if looked is None else min(max(0.0, now.unix_s - looked), longest_s)
        self._looked_unix_s = now.unix_s
        noted: list[_Open] = []
        for finding in found:
            if not _is_fault(finding):
                continue
            known = next((one for one in self._open if is_of_fault(finding, one.period)), None)
            if known is None:
                before = [one.seen_unix_s for one in self._over if is_of_fault(finding, one)]
                known = _begun(finding, now, max(before, default=-math.inf))
                self._open.append(known)
            if known not in noted:
                noted.append(known)
                _note(known, finding, now, passed_s)
        self._explain(found[0], now)
        for one in [one for one in self._open if one not in noted]:
            one.period = replace(one.period, lasts=False)
            if now.unix_s - one.period.seen_unix_s > _away_s(now):
                self._open.remove(one)
                self._keep(one.period)
        shown = [*self._over, *(one.period for one in self._open if _is_long(one.period))]
        self.periods = tuple(sorted(shown, key=lambda one: one.began_unix_s))
        if not noted and not any(is_of_fault(found[0], one) for one in self.periods):
            self.steady.add(found, passed_s)

    def _explain(self, head: Finding, now: Moment) -> None:
        """Leave of steps that became longer only their cause, once it is found, begun when they did."""
        for growth in [one for one in self._open if one.period.kind is Kind.UNKNOWN]:
            fault = next((one for one in self._open if is_of_fault(head, one.period)), None)
            began_unix_s = now.unix_s if fault is None else fault.period.began_unix_s
            if not _is_cause(head, began_unix_s, growth.period):
                continue
            self._open.remove(growth)
            if fault is not None:
                _begin_with(fault, growth.period)

    def _keep(self, period: FaultPeriod) -> None:
        if not _is_long(period):
            return
        self._over.append(period)
        if len(self._over) > _MOST_PERIODS:
            self._over.remove(min(self._over, key=lambda one: (one.lost_s or 0.0, one.lasted_s)))


def _is_fault(finding: Finding) -> bool:
    if finding.may_be_over:
        return False
    if finding.is_unexplained_growth:
        return True
    if not finding.confidence:
        return False
    begun = bool(finding.culprits) or finding.since_step is not None or finding.longer_for_s is not None
    return finding.kind in _ALWAYS or (finding.kind in _IF_BEGUN and begun)


def is_of_fault(finding: Finding, period: FaultPeriod) -> bool:
    """Whether both have the same culprits; without any, whether they may have the same cause.

    That a cause is unknown says nothing of that, unless steps became longer.
    """
    if Kind.UNKNOWN in {period.kind, finding.kind}:
        return period.kind is finding.kind and finding.is_unexplained_growth
    if period.culprits or finding.culprits:
        return list(period.culprits) == list(finding.culprits)
    return period.kind is finding.kind or {period.kind, finding.kind} <= _SAME_CAUSE


def _begun(finding: Finding, now: Moment, not_before_unix_s: float) -> _Open:
    began_unix_s = max(now.unix_s - _lasted_s(finding, now), not_before_unix_s)
    gain = _cost(finding)
    return _Open(
        FaultPeriod(
            kind=finding.kind,
            culprits=finding.culprits,
            began_unix_s=began_unix_s,
            seen_unix_s=now.unix_s,
            first_step=now.newest_step if finding.since_step is None else finding.since_step,
            lost_s=None if gain is None else gain * (now.unix_s - began_unix_s),
        ),
        costly_s=0.0 if gain is None else now.unix_s - began_unix_s,
    )


def _lasted_s(finding: Finding, now: Moment) -> float:
    """For how long it has lasted when it is found; 0 where nothing says."""
    if finding.longer_for_s is not None or not finding.is_unexplained_growth or now.newest_step is None:
        return finding.longer_for_s or 0.0
    return max(0, now.newest_step + 1 - (finding.since_step or 0)) * (finding.step_s or 0.0)


def _is_cause(head: Finding, began_unix_s: float, growth: FaultPeriod) -> bool:
    """Whether a headline, whose fault began then, is why steps became longer."""
    later_s = began_unix_s - growth.began_unix_s
    most_s = _CAUSE_S if head.longer_for_s is None else _SAME_CHANGE_S
    costly = (head.gain_ratio or 0.0) >= _AS_MUCH * (growth.gain_ratio or 0.0)
    known = head.kind not in _NO_CAUSE and not head.may_be_over
    return known and costly and -_SAME_CHANGE_S <= later_s <= most_s


def _begin_with(fault: _Open, growth: FaultPeriod) -> None:
    """Let a fault begin with the longer steps that it caused."""
    earlier_s = min(fault.period.began_unix_s, growth.seen_unix_s) - growth.began_unix_s
    if earlier_s <= 0:
        return
    lost_s = (fault.period.lost_s or 0.0) + earlier_s * (growth.gain_ratio or 0.0)
    fault.costly_s += earlier_s
    fault.period = replace(
        fault.period,
        began_unix_s=growth.began_unix_s,
        first_step=growth.first_step,
        gain_ratio=lost_s / fault.costly_s,
        lost_s=lost_s,
    )


def _note(known: _Open, finding: Finding, now: Moment, passed_s: float) -> None:
    before, gain = known.period, _cost(finding)
    passed_s = min(passed_s, now.unix_s - before.seen_unix_s)
    known.of_kind_s[finding.kind] = known.of_kind_s.get(finding.kind, 0.0) + passed_s
    lost_s, ratio = before.lost_s, before.gain_ratio
    if gain is not None:
        lost_s = (lost_s or 0.0) + gain * passed_s
        known.costly_s += passed_s
        ratio = lost_s / known.costly_s if known.costly_s else gain
    last_step = now.newest_step if now.newest_step is not None else before.last_step
    counted_otherwise = (last_step or 0) < (before.first_step or 0)
    if counted_otherwise:
        # Steps in what was found before are those of the other count.
        known.most_ratio = 0.0
    if (_cost(finding) or 0.0) > known.most_ratio:
        known.most_ratio = _cost(finding) or 0.0
        before = replace(
            before,
            confidence=finding.confidence,
            evidence=tuple(finding.evidence),
            advice=finding.advice,
        )
    known.period = replace(
        before,
        kind=max(known.of_kind_s, key=lambda kind: known.of_kind_s[kind]),
        seen_unix_s=max(before.seen_unix_s, now.unix_s),
        lasts=True,
        first_step=None if counted_otherwise else before.first_step,
        last_step=last_step,
        gain_ratio=ratio,
        lost_s=lost_s,
    )


def _cost(finding: Finding) -> float | None:
    """While a job hangs, all of its time is lost."""
    return 1.0 if finding.kind is Kind.HANG else finding.gain_ratio


def _is_long(period: FaultPeriod) -> bool:
    return period.lasted_s >= _LEAST_S


def _away_s(now: Moment) -> float:
    return max(_AWAY_S, THRESHOLDS.blame_hold_steps_count * (now.step_s or 0.0))
