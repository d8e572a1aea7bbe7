"""Whether two findings are of one fault, and which of them costs more."""

from __future__ import annotations

from perfd.analysis.findings.finding import Finding
from perfd.analysis.findings.finding_kind import Kind
from perfd.thresholds import THRESHOLDS

_OF_ONE_RANK = frozenset({Kind.STRAGGLER, Kind.PERIODIC_STALL, Kind.LATE_HOSTS})
"""Of the same rank, or its role, these are one fault."""
AS_MUCH = 0.1
"""Of what hosts of all ranks cost: by how much that differs between rounds. Chosen."""
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
    one_of_them = head.kind is Kind.STRAGGLER and set(head.culprit_ranks) < set(hosts.ranks)
    gain = hosts.gain_ratio or 0.0
    return several and one_of_them and abs((head.gain_ratio or 0.0) - gain) <= AS_MUCH * gain


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


def far_costlier(head: Finding, still: Finding | None) -> bool:
    """Than the previous one, if it is still found. Clocks and links are slow for a moment now and then."""
    more = weight(head) - (0.0 if still is None else weight(still))
    return head.kind not in _MOMENTARY and more >= THRESHOLDS.verdict_margin_ratio


def weight(finding: Finding) -> float:
    """What it costs, by how sure that is."""
    return finding.confidence * (finding.gain_ratio or 0.0)
