"""A fault that began while the job ran is found for as long as steps stay as long as it made them.

Where no other rank has the same work, a slow rank or slow loaders show by the steps before: all others wait
for longer than then. Windows of steps are short, and once those before have left them no round finds the
fault, although it may go on for hours. It is over once steps are nearer to what they took before it, or
clearly shorter than with it. Where peers have the same work, rounds find it by comparison with them later,
with gaps of some seconds.

Longer steps of unknown cause stay the finding for as long, until a cause is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfd.analysis.findings.advice import MORE_STEPS
from perfd.analysis.findings.causal_graph import acting_order, cause_of, explains
from perfd.analysis.findings.finding import Finding
from perfd.analysis.findings.finding_kind import COMPUTATION, Kind
from perfd.analysis.findings.same_fault import is_same, is_same_change
from perfd.formatting import duration, percent

_KINDS = frozenset({Kind.STRAGGLER, Kind.LATE_HOSTS, Kind.DATA_LOADING, Kind.HOST_CONTENTION})
_NO_CAUSE = COMPUTATION | {Kind.UNKNOWN}
_LEAST_CONFIDENCE = 0.6
"""Of what is said long after it was seen: that which is measured in part, at least."""
_LEAST_S = 5.0
"""Rounds that found it for less may have been wrong: the cause of a change is clear within this. Chosen."""
_ADDED_RATIO = 0.1
"""Of a step, by which a rank that becomes slow besides makes it longer. Chosen, as for a longer step."""
_LESS_RATIO, _LESS_OF_IT = 0.1, 1 / 3
"""Of a step, and of what the fault added to it: steps that are shorter than with it by this show that it is
over where they do not get as short as before, since hosts had become slower meanwhile. Chosen."""
_ALIKE = 0.1
"""Of what hosts of all ranks cost, by which what their last one seems to cost differs from that. Chosen."""
_BY_SHARES = frozenset({Kind.DATA_LOADING, Kind.LATE_HOSTS})
"""Without a change of steps, the evidence for these is shares of the last seconds."""
_SHORT_AGAIN = Finding(
    kind=Kind.UNKNOWN,
    confidence=0.0,
    evidence=("Steps are as short as before again; what limits them now is not known yet.",),
    advice=MORE_STEPS,
)
_FAR_MORE = 2.0
"""Times what steps are still longer by: a rank that is said to cost more was late in earlier ones. Chosen."""
_NEARLY = 0.25
"""Of what a fault added to a step, up to which steps are as short as without it. Chosen."""
_LEFT_S = 30.0
"""How long waiting in collectives is judged, so that it shows a fault that is over, and one that goes on."""
_AS_MUCH = 0.5
"""Of its cost, from which on another rank that is blamed takes its place. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingFault:
    """What rounds found by the steps before it."""

    finding: Finding
    """As found last."""
    began_unix_s: float
    """When rounds found it first, and last."""
    seen_unix_s: float
    over_unix_s: float | None = None
    """Since when steps are shorter again; None while it lasts."""
    by_peers: bool = False
    """Whether rounds found it by comparison with peers, too, which has gaps, but shows when it is over."""

    @property
    def before_s(self) -> float:
        """A step before it."""
        return self.finding.before_s

    @property
    def is_sure(self) -> bool:
        """Whether rounds found it for long enough."""
        return self.seen_unix_s - self.began_unix_s >= _LEAST_S


def with_lasting_fault(
    prior: LastingFault | None,
    found: Sequence[Finding],
    *,
    unix_s: float,
    step: int | None,
    newest_step_s: float | None,
    makes_steps: bool = True,
) -> tuple[LastingFault | None, Sequence[Finding]]:
    """The fault that lasts after this round, and its findings with it, the one to act on first at the front.

    `step` is the newest step and `newest_step_s` what the newest steps take; None where they are unknown.
    `makes_steps` is whether more may come: that none do is all to say then of an unknown cause.
    """
    if prior is not None and prior.finding.is_unexplained_growth:
        pace_s = newest_step_s if makes_steps else None
        still = _still_unexplained(prior, found, unix_s=unix_s, step=step, newest_step_s=pace_s)
        if still is not None:
            return still
        prior = None
    prior, shown = _with_cause(prior, found, unix_s=unix_s, step=step, newest_step_s=newest_step_s)
    if prior is None and shown[0].is_unexplained_growth:
        prior = LastingFault(finding=shown[0], began_unix_s=unix_s, seen_unix_s=unix_s)
    return prior, shown


def _with_cause(
    prior: LastingFault | None,
    found: Sequence[Finding],
    *,
    unix_s: float,
    step: int | None,
    newest_step_s: float | None,
) -> tuple[LastingFault | None, Sequence[Finding]]:
    if prior is not None and _began_anew(prior, step):
        prior = None
    fresh = next((one for one in found if _by_steps_before(one)), None)
    if fresh is not None and not _is_effect_of(prior, fresh):
        return _found_by_steps(prior, fresh, found, unix_s)
    seen = None if prior is None else next((one for one in found if is_same(prior.finding, one)), None)
    if prior is None or (seen is None and _is_gone(prior, unix_s)):
        return None, found
    if seen is not None and prior.over_unix_s is None:
        lasts = _found_otherwise(prior, seen, found, unix_s, newest_step_s)
        if lasts is not None:
            return lasts
    if prior.over_unix_s is None and are_short_again(prior.finding, newest_step_s):
        prior = replace(prior, over_unix_s=unix_s)
    if prior.over_unix_s is not None:
        return _after(prior, found, unix_s, newest_step_s)
    replaced = _is_replaced(prior, found, newest_step_s)
    if replaced or newest_step_s is None:
        return (None if replaced else prior), found
    still = _lasting(prior, unix_s, newest_step_s)
    last = Kind.STRAGGLER if not still.culprits and _is_as_long(prior, newest_step_s) else None
    others = [one for one in found if one.kind not in {*_NO_CAUSE, last} and cause_of(one, [still]) is None]
    return prior, sorted((still, *others), key=acting_order)


def _found_by_steps(
    prior: LastingFault | None, fresh: Finding, found: Sequence[Finding], unix_s: float
) -> tuple[LastingFault, Sequence[Finding]]:
    """The fault that a round finds by the steps before it, and the findings."""
    again = prior is not None and is_same(prior.finding, fresh)
    if again and prior is not None and _became_worse(prior, fresh):
        grown = _seen_again(prior, fresh, unix_s)
        return grown, _with(_lasting(grown, unix_s, fresh.step_s or 0.0), fresh, found)
    began_unix_s = prior.began_unix_s if again and prior is not None else unix_s
    return LastingFault(finding=fresh, began_unix_s=began_unix_s, seen_unix_s=unix_s), found


def _found_otherwise(
    prior: LastingFault, seen: Finding, found: Sequence[Finding], unix_s: float, newest_step_s: float | None
) -> tuple[LastingFault, Sequence[Finding]] | None:
    """The fault as other evidence shows it, and the findings; None if only that is left of it.

    Shares of time may be of other steps, too: what it costs is known better by those since it began.
    """
    if newest_step_s is not None and _is_outdated(prior, seen, newest_step_s):
        return None
    if newest_step_s is None or not _is_share_of_time(seen):
        return _seen_again(prior, seen, unix_s), _with(_at_most(prior, seen, newest_step_s), seen, found)
    return replace(prior, seen_unix_s=unix_s), _with(_lasting(prior, unix_s, newest_step_s), seen, found)


def _after(
    prior: LastingFault, found: Sequence[Finding], unix_s: float, newest_step_s: float | None
) -> tuple[LastingFault | None, Sequence[Finding]]:
    """Findings after a fault, without what steps of it, and shares of its time, still show of it."""
    # Steps that are long again are so for another reason.
    short = newest_step_s is None or are_short_again(prior.finding, newest_step_s)
    if not short or unix_s - (prior.over_unix_s or unix_s) > _LEFT_S:
        return None, found
    kept = [one for one in found if newest_step_s is None or not _is_outdated(prior, one, newest_step_s)]
    return prior, without_last_of_late_hosts(prior, kept or [_SHORT_AGAIN])


def _is_outdated(prior: LastingFault, again: Finding, newest_step_s: float) -> bool:
    """Whether steps are short again, and a finding costs more than they are still longer by."""
    if not is_same(prior.finding, again) or not are_short_again(prior.finding, newest_step_s):
        return False
    if again.kind is not Kind.STRAGGLER or again.longer_for_s is not None:
        return _is_share_of_time(again)
    most = _FAR_MORE * (1 - prior.before_s / newest_step_s)
    return (
        prior.is_sure and _is_nearly_gone(prior.finding, newest_step_s) and (again.gain_ratio or 0.0) > most
    )


def _with(shown: Finding, seen: Finding, found: Sequence[Finding]) -> Sequence[Finding]:
    """The findings with one in place of another, the one to act on first at the front."""
    if shown is seen:
        return found
    return sorted([shown if one is seen else one for one in found], key=acting_order)


def _still_unexplained(
    prior: LastingFault,
    found: Sequence[Finding],
    *,
    unix_s: float,
    step: int | None,
    newest_step_s: float | None,
) -> tuple[LastingFault, Sequence[Finding]] | None:
    """The same for an unknown cause, which explains no other finding; None once it is over, or known.

    Where steps become longer again, since when they are longer is not forgotten.
    """
    head = found[0]
    if _began_anew(prior, step) or any(map(_by_steps_before, found)):
        return None
    if head.is_unexplained_growth and (not prior.is_sure or are_short_again(prior.finding, head.before_s)):
        return replace(prior, finding=head, seen_unix_s=unix_s), found
    if not head.is_unexplained_growth and (
        not prior.is_sure or are_short_again(prior.finding, newest_step_s)
    ):
        return None
    if head.kind not in {Kind.UNKNOWN, Kind.HANG}:
        # Rounds that find a cause for less may be wrong, too.
        return (prior, found) if unix_s - prior.seen_unix_s < _LEAST_S else None
    prior = replace(prior, seen_unix_s=unix_s)
    suspects = head.kind is not Kind.UNKNOWN or bool(head.culprits) or head.gain_ratio is not None
    if newest_step_s is None or suspects:
        return prior, found
    still = f"It goes on: steps still take {duration(newest_step_s)}."
    shown = replace(
        prior.finding,
        evidence=(*prior.finding.evidence, still),
        gain_ratio=min(prior.finding.gain_ratio or 0.0, 1 - prior.before_s / newest_step_s),
        step_s=newest_step_s,
    )
    return prior, (shown, *found[1:])


def without_last_of_late_hosts(prior: LastingFault | None, found: Sequence[Finding]) -> Sequence[Finding]:
    """Findings without a rank that is only the last of all, whose hosts were late: it costs as much.

    What shows the steps before is gone first, and waiting in the steps of the fault later.
    """
    of_hosts = prior is not None and prior.finding.kind is not Kind.UNKNOWN
    if prior is None or not of_hosts or not prior.is_sure or prior.finding.culprits:
        return found
    gain = prior.finding.gain_ratio or 0.0
    kept = [
        one
        for one in found
        if one.kind is not Kind.STRAGGLER
        or len(one.culprits) > 1
        or abs((one.gain_ratio or 0.0) - gain) > _ALIKE * gain
    ]
    return kept or [replace(prior.finding, may_be_over=True)]


def _is_share_of_time(finding: Finding) -> bool:
    """Whether it is by shares of a time that may have been with and without a fault of all ranks."""
    began = finding.since_step is not None or finding.longer_for_s is not None
    return finding.kind in _BY_SHARES and not began and not finding.culprits


def _by_steps_before(finding: Finding) -> bool:
    known = finding.longer_for_s is not None and finding.gain_ratio is not None and finding.step_s is not None
    sure = finding.confidence >= _LEAST_CONFIDENCE and not finding.may_be_over
    return finding.kind in _KINDS and known and sure


def _seen_again(prior: LastingFault, again: Finding, unix_s: float) -> LastingFault:
    """The fault, which a round finds by other evidence, with what a step takes now."""
    known, before_s = prior.finding, prior.before_s
    by_peers = prior.by_peers or (bool(again.culprits) and again.confidence >= _LEAST_CONFIDENCE)
    if again.step_s is not None and again.step_s > before_s:
        known = replace(known, gain_ratio=1 - before_s / again.step_s, step_s=again.step_s)
    return replace(prior, finding=known, seen_unix_s=unix_s, by_peers=by_peers)


def _at_most(prior: LastingFault, again: Finding, newest_step_s: float | None) -> Finding:
    """The fault as other evidence shows it, which costs no more than steps became longer by.

    By waits a rank costs as much as it is late for, also where its peers would be late for as long.
    """
    step_s = max(again.step_s or 0.0, prior.finding.step_s or 0.0, newest_step_s or 0.0)
    most = 1 - prior.before_s / step_s
    if again.kind is not Kind.STRAGGLER or (again.gain_ratio or 0.0) <= most:
        return again
    bound = f"Steps took {duration(prior.before_s)} before, so it costs at most {percent(most)}."
    return replace(again, gain_ratio=most, step_s=step_s, evidence=(*again.evidence, bound))


def _became_worse(prior: LastingFault, fresh: Finding) -> bool:
    """Whether a fault that lasts became worse: steps were as long as it made them before this change, too."""
    lasts = prior.is_sure and prior.over_unix_s is None
    return (
        lasts
        and not is_same_change(prior.finding, fresh)
        and not are_short_again(prior.finding, fresh.before_s)
    )


def _is_effect_of(prior: LastingFault | None, fresh: Finding) -> bool:
    """Whether a round sees less of the same change: that hosts are late, and not why."""
    if prior is None or not prior.is_sure or is_same(prior.finding, fresh):
        return False
    return is_same_change(prior.finding, fresh) and explains(prior.finding, fresh)


def _is_gone(prior: LastingFault, unix_s: float) -> bool:
    """Whether a fault that this round does not find was found for too short a time, or not for too long."""
    return not prior.is_sure or (prior.by_peers and unix_s - prior.seen_unix_s > _LEFT_S)


def _began_anew(prior: LastingFault, step: int | None) -> bool:
    since_step = prior.finding.since_step
    return step is not None and since_step is not None and step < since_step


def are_short_again(fault: Finding, newest_step_s: float | None) -> bool:
    """Whether the newest steps are clearly shorter than those that a fault made longer."""
    if newest_step_s is None:
        return False
    with_it_s = fault.step_s or 0.0
    added_s = with_it_s - fault.before_s
    less_s = max(_LESS_RATIO * with_it_s, _LESS_OF_IT * added_s)
    return newest_step_s <= with_it_s - min(added_s / 2, less_s)


def is_over_by_steps(fault: Finding, newest_step_s: float | None) -> bool:
    """Whether the newest steps rule out that a fault still costs what was found.

    Where only peers show it, no step before is known, and steps of other lengths are common: they must be
    nearly as short as without it.
    """
    if newest_step_s is None or fault.step_s is None:
        return False
    if fault.longer_for_s is not None:
        return are_short_again(fault, newest_step_s)
    return _is_nearly_gone(fault, newest_step_s)


def _is_nearly_gone(fault: Finding, newest_step_s: float) -> bool:
    """Whether the newest steps have little left of what it added to them."""
    return newest_step_s <= fault.before_s + _NEARLY * ((fault.step_s or 0.0) - fault.before_s)


def _is_replaced(prior: LastingFault, found: Sequence[Finding], newest_step_s: float | None) -> bool:
    """Whether another rank is blamed that costs about as much."""
    cause = prior.finding
    if not cause.culprits and _is_as_long(prior, newest_step_s):
        # Of all hosts that are late, one is the last.
        return False
    least = _AS_MUCH * (cause.gain_ratio or 0.0)
    return any(
        one.culprits and not is_same(cause, one) and (one.gain_ratio or 0.0) >= least
        for one in found
        if one.kind is Kind.STRAGGLER
    )


def _is_as_long(prior: LastingFault, newest_step_s: float | None) -> bool:
    """Whether steps are no longer than the fault alone made them."""
    return newest_step_s is not None and newest_step_s <= (1 + _ADDED_RATIO) * (prior.finding.step_s or 0.0)


def _lasting(prior: LastingFault, unix_s: float, newest_step_s: float) -> Finding:
    """The finding with what it cost when it was found, of a step that may be longer yet for other reasons."""
    cause = prior.finding
    found_s = cause.step_s or 0.0
    step_s = max(newest_step_s, found_s)
    still = f"It goes on: steps still take {duration(newest_step_s)}."
    return replace(
        cause,
        evidence=(*cause.evidence, still),
        gain_ratio=(found_s - prior.before_s) / step_s,
        step_s=step_s,
        longer_for_s=(cause.longer_for_s or 0.0) + unix_s - prior.seen_unix_s,
    )
