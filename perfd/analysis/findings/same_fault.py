"""Whether two findings are of one fault, and which of them costs or shows more."""

from __future__ import annotations

from dataclasses import replace

from perfd.analysis.findings.causal_graph import EXPLAINS
from perfd.analysis.findings.finding import Finding
from perfd.analysis.findings.finding_kind import Kind
from perfd.thresholds import THRESHOLDS

_OF_ONE_RANK = frozenset({Kind.STRAGGLER, Kind.PERIODIC_STALL, Kind.LATE_HOSTS})
"""Of the same rank, or its role, these are one fault."""
AS_MUCH = 0.1
"""Of what hosts of all ranks cost: by how much that differs between rounds. Chosen."""
_MAY_BE_OVER = "The newest rounds do not find it: it may be over."
_MOMENTARY = frozenset({Kind.THROTTLING, Kind.SLOW_LINK})


def seen_otherwise(blamed: Finding, head: Finding, *, more: bool) -> bool:
    """Whether a round's first finding is the fault of the blamed rank, by steps with and without it.

    With `more` only if it costs not far more so: that shows it better.
    """
    kinds = {blamed.kind, head.kind}
    if not blamed.culprits or len(kinds) == 1 or not kinds <= _OF_ONE_RANK:
        return False
    same = blamed.culprits == head.culprits or _of_same_ranks(blamed, head)
    return same and not (more and far_costlier(head, blamed))


def with_others(blamed: Finding, head: Finding) -> bool:
    """Whether a round's first finding is that fault, with the ranks that are late with the blamed one."""
    if not blamed.culprits or not {blamed.kind, head.kind} <= _OF_ONE_RANK:
        return False
    return not head.culprits and bool(head.ranks) and set(blamed.concerned_ranks) <= set(head.ranks)


def is_last_of(hosts: Finding, head: Finding) -> bool:
    """Whether a rank may be just the last of several whose hosts are late: it costs as much as they do."""
    several = hosts.kind is Kind.LATE_HOSTS and len(hosts.ranks) > 1
    one_of_them = several and set(head.culprit_ranks) < set(hosts.ranks)
    of_all = hosts.kind is Kind.DATA_LOADING and not hosts.culprits and hosts.since_step is not None
    gain = hosts.gain_ratio or 0.0
    as_much = abs((head.gain_ratio or 0.0) - gain) <= AS_MUCH * gain
    return head.kind is Kind.STRAGGLER and (one_of_them or of_all) and as_much


def are_its_stalls(blamed: Finding, head: Finding) -> bool:
    """Whether a round's first finding is of stalls of unknown ranks, as the blamed one has or had."""
    stalls = head.kind is Kind.PERIODIC_STALL and not head.concerned_ranks
    return stalls and blamed.kind in _OF_ONE_RANK and bool(blamed.culprits)


def _of_same_ranks(blamed: Finding, head: Finding) -> bool:
    """Whether both are about the same ranks, one by their role."""
    return bool(blamed.concerned_ranks) and list(blamed.concerned_ranks) == list(head.concerned_ranks)


def has_effect(head: Finding, blamed: Finding) -> bool:
    """Whether a round's first finding explains the blamed one."""
    return any((one.kind, one.culprits) == (blamed.kind, blamed.culprits) for one in head.effects)


def was_its_effect(head: Finding, settled: Finding | None) -> bool:
    """Whether what the headline explained goes on, and only the evidence of that cause is under its bound."""
    return settled is not None and has_effect(settled, head)


def is_same(one: Finding, other: Finding) -> bool:
    """Whether both are of one kind and name the same."""
    return (one.kind, one.culprits) == (other.kind, other.culprits)


def is_same_change(one: Finding, other: Finding) -> bool:
    """Whether both see steps become longer at one time: before it they took as long for both.

    A change that only GPUs show, without steps, may be any.
    """
    return one.step_s is None or other.before_s <= (one.before_s + one.step_s) / 2


def far_costlier(head: Finding, still: Finding | None) -> bool:
    """Than the previous one, if it is still found. Clocks and links are slow for a moment now and then."""
    more = weight(head) - (0.0 if still is None else weight(still))
    return head.kind not in _MOMENTARY and more >= THRESHOLDS.verdict_margin_ratio


def weight(finding: Finding) -> float:
    """What it costs, by how sure that is."""
    return finding.confidence * (finding.gain_ratio or 0.0)


def mixes(settled: Finding, head: Finding) -> bool:
    """Whether a loss was known since it began, and is now a mean over steps with and without it."""
    less = settled.since_step is not None and (head.gain_ratio or 0.0) < (settled.gain_ratio or 0.0)
    return less and head.since_step is None and settled.kind is not Kind.UNKNOWN


def with_figures(headline: Finding, head: Finding) -> Finding:
    """The headline with what a round's first finding says of its cost."""
    return replace(
        headline,
        gain_ratio=head.gain_ratio,
        step_s=head.step_s,
        longer_for_s=head.longer_for_s,
        since_step=head.since_step,
    )


def may_be_over(blamed: Finding) -> Finding:
    """The finding, which the newest rounds do not have."""
    return replace(blamed, may_be_over=True, evidence=(*blamed.evidence, _MAY_BE_OVER))


def input_became_slow(finding: Finding) -> bool:
    """Whether loaders became slow while the job ran: that is over once steps are short again."""
    return finding.kind is Kind.DATA_LOADING and finding.longer_for_s is not None


def shows_less(blamed: Finding, head: Finding) -> bool:
    """Whether a round sees less of the same change: that steps are longer, and not why."""
    effect = head.kind in EXPLAINS.get(blamed.kind, {}) and head.longer_for_s is not None
    known = head.step_s is not None and (effect or head.is_unexplained_growth)
    return known and is_same_change(blamed, head)


def is_lesser_stall(head: Finding, settled: Finding | None) -> bool:
    """Whether stalls lead a round only because it misses the headline, which costs more."""
    return head.kind is Kind.PERIODIC_STALL and settled is not None and weight(head) < weight(settled)
