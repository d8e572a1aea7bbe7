"""Whether communication limits a job: collectives that move data, slow links, and where groups lie."""

from __future__ import annotations

from perfd.analysis.collectives import Reference, SlowGroup, bandwidth_words, busiest
from perfd.analysis.communication import Communication, costliest, known_in_all, not_used
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Culprit, Finding, Kind, advice, is_set
from perfd.formatting import duration, percent, rank_names
from perfd.thresholds import THRESHOLDS

_NEARLY_ALL = 0.95
"""Of the time in communication timers, from which on the sentence names gradients alone. Chosen."""
_FASTER = 0.95
"""By what the ring formula gives: what takes less is not explained by it."""
_CANNOT_HIDE = 0.5
"""Of a step: there is less computation than that to hide it behind."""
_WORTH_A_WORD = 0.01
"""Of a step: of a dimension that takes less nothing is said."""
_SHOWN = 4
"""Groups that are described; the others are counted."""
_AS_COSTLY = 0.5
"""Of what the costliest slow group costs, from which another one is named beside it. Chosen."""
_REFERENCES = {
    Reference.HISTORY: "what it reached earlier in this job",
    Reference.SISTERS: "the median of the other groups of its kind",
    Reference.LINKS: "one direction of the NVLink between its GPUs",
}
_CONFIDENCE = {Reference.HISTORY: 0.8, Reference.SISTERS: 0.8, Reference.LINKS: 0.6}


def judge_communication(facts: JobEvidence) -> Finding | None:
    """How much of a step collectives take, and what would make it less; None where that is little."""
    communication = facts.communication
    if communication.transfer_ratio is None and _only_captured(facts) and (facts.parallel.pp or 1) > 1:
        # How much of it is the pipeline's stall, the traces do not say.
        return None
    lost = _lost(communication)
    if lost is None or lost < THRESHOLDS.communication_ratio:
        return None
    if communication.transfer_ratio is None and facts.nccl.share_ratio is not None:
        return _busy_kernels(facts, lost)
    evidence = [f"{_share_of_a_step(facts, lost)} ({communication.source})."]
    if communication.wait_ratio is not None:
        evidence.append(
            f"Another {percent(communication.wait_ratio)} is waiting for other ranks in NCCL's kernels."
        )
        evidence += _unknown_culprit(facts, communication.wait_ratio)
    if communication.overlap_ratio is not None:
        evidence.append(
            f"Computation and copies hid {percent(communication.overlap_ratio)} of communication, so about"
            f" {percent(communication.exposed_ratio or 0.0)} of a step is exposed"
            f" ({communication.exposed_source})."
        )
    elif communication.exposed_ratio is None:
        evidence += not_used(facts.capture)
    evidence += _by_dimension(facts)
    evidence += _gradients(communication)
    evidence += [bandwidth_words(kind) for kind in busiest(facts.nccl.kinds)[:1]]
    seconds, ring = communication.seconds, communication.ring_estimate_s
    slow_links = seconds is not None and ring is not None and seconds > 2 * ring
    unseen = communication.exposed_ratio is None and facts.communication_may_overlap
    if unseen:
        evidence.append(
            "Part of it may run beside computation; a capture shows what it costs."
            if lost >= _CANNOT_HIDE
            else "It may run beside computation, so what it costs is unknown until a capture shows it."
        )
    return Finding(
        kind=Kind.COMMUNICATION,
        confidence=0.4 if unseen else 0.8,
        evidence=evidence,
        advice=advice.CAPTURE_OVERLAP if unseen else _advice(facts, lost, slow_links=slow_links),
        # Of so much that computation could not hide it all, what is lost is close to that.
        gain_ratio=lost if not unseen or lost >= _CANNOT_HIDE else None,
        waiting_ratio=_waiting(communication, lost),
    )


def _unknown_culprit(facts: JobEvidence, waiting: float) -> list[str]:
    """That no rank can be compared, as where communicators are made anew in each step."""
    ranks = facts.nccl.ranks
    if waiting < THRESHOLDS.straggler_wait_ratio or not ranks or facts.nccl.missing_ranks:
        return []
    if any(rank.gain_ratio is not None for rank in ranks):
        return []
    return ["For which rank is unknown: no communicator of ranks with equal work has enough operations yet."]


def _lost(communication: Communication) -> float | None:
    """What it costs of a step: waiting is another rank's fault, and what is hidden costs nothing."""
    moves, exposed = communication.transfer_ratio, communication.exposed_ratio
    reported = [communication.share_ratio if moves is None else moves, exposed]
    if moves is not None and communication.share_ratio is not None:
        # One dimension may wait in the open while another one moves its data unseen.
        known = known_in_all(communication.dimensions, communication.share_ratio)
        reported.append(sum(one.lost_ratio or 0.0 for one in known) if known else None)
    return None if reported[0] is None else min(ratio for ratio in reported if ratio is not None)


def _waiting(communication: Communication, lost: float) -> float | None:
    """How much of what is lost waits for other ranks; None if unknown."""
    if communication.transfer_ratio is not None:
        return max(0.0, lost - communication.transfer_ratio)
    least = communication.least_ratio
    return None if least is None else max(0.0, lost - least)


def _by_dimension(facts: JobEvidence) -> list[str]:
    """How much of a step each dimension leaves exposed, the costliest first, and of which that is unknown."""
    large = [one for one in facts.communication.dimensions if one.share_ratio >= _WORTH_A_WORD]
    known = [one for one in large if one.exposed_ratio is not None]
    evidence = []
    if known:
        reported = ", ".join(
            f"{one.group or 'others'} {percent(one.exposed_ratio or 0.0)} ({one.exposed_source})"
            for one in sorted(known, key=lambda one: -(one.lost_ratio or 0.0))
        )
        evidence.append(f"Exposed in a step is, by parallel dimension: {reported}.")
    if len(known) < len(large) and (facts.capture is None or facts.capture.used):
        unknown = [one for one in large if one.exposed_ratio is None]
        names = ", ".join(
            f"{one.group or 'others'} ({percent(one.share_ratio)} of a step)" for one in unknown
        )
        why = "; ".join(dict.fromkeys(one.missing or "no source shows it" for one in unknown))
        evidence.append(f"How much is exposed of {names} is unknown: {why}.")
    return evidence


def _busy_kernels(facts: JobEvidence, busy: float) -> Finding:
    """A busy NCCL alone proves nothing: without the other ranks' times it may be waiting for one of them."""
    missing = facts.nccl.missing_ranks
    why = (
        f"no timings came from {rank_names(missing)}"
        if missing
        else "too few operations could be matched over all ranks"
    )
    return Finding(
        kind=Kind.COMMUNICATION,
        confidence=0.4,
        evidence=[
            f"NCCL's kernels run {percent(busy)} of the time ({facts.communication.source}).",
            f"How much of that moves data, and how much waits for a slow rank, is unknown: {why}.",
        ],
        advice=advice.ALL_RANKS_FIRST,
    )


def _share_of_a_step(facts: JobEvidence, lost: float) -> str:
    communication, step_s = facts.communication, facts.step_time.median
    seconds, gradient_s = communication.seconds, communication.gradient_s
    if facts.nccl.share_ratio is not None or seconds is None or step_s is None:
        return f"Collectives take {percent(lost)} of a step"
    only_gradients = gradient_s is not None and gradient_s > _NEARLY_ALL * seconds
    what = "Reducing gradients takes" if only_gradients else "Collectives take"
    return f"{what} {percent(lost)} of a step, {1000 * seconds:.1f} of {duration(step_s)}"


def _gradients(communication: Communication) -> list[str]:
    """What the gradients' reduction reaches, and what a ring would need at the speed of its links."""
    size, reached = communication.gradient_bytes, communication.bus_bytes_per_s
    ring, link, took = communication.ring_estimate_s, communication.link_bytes_per_s, communication.gradient_s
    evidence = []
    if size is not None and reached is not None:
        evidence.append(
            f"{size / 1e9:.1f} GB of gradients a rank so amount to {reached / 1e9:.0f} GB/s of bus bandwidth."
        )
    if ring is None or link is None:
        return evidence
    ring_words = f"By the ring formula links of {link / 1e9:.0f} GB/s need {duration(ring)}"
    if reached is not None and took is not None and took < _FASTER * ring:
        ring_words += ": it takes less, so links are faster, or trees and NVLink SHARP send fewer bytes"
    return [*evidence, f"{ring_words}."]


def _only_captured(facts: JobEvidence) -> bool:
    capture = facts.capture
    return capture is not None and capture.used and facts.communication.source == capture.source


def _advice(facts: JobEvidence, lost: float, *, slow_links: bool) -> str:
    """What makes communication less: of the dimension that costs most, where that is known."""
    target = costliest(facts.communication.dimensions)
    won = lost if target is None else target.lost_ratio or 0.0
    remedy = advice.BY_DIMENSION.get(target.group or "") if target else None
    first = f"{remedy}: saves at most {percent(won)} of the step." if remedy else _of_gradients(facts, won)
    texts = [first, *([] if target else _of_tensor_groups(facts))]
    if any(kind.latency_bound for kind in busiest(facts.nccl.kinds)[:1]):
        texts.append(advice.LARGER_MESSAGES)
    if slow_links:
        texts.append(advice.SLOW_COLLECTIVES)
    return " ".join(texts)


def _of_gradients(facts: JobEvidence, lost: float) -> str:
    # Twice the micro-batches double all but the gradients' collectives and the optimizer.
    fixed = lost + (facts.optimizer.share_ratio or 0.0)
    accumulated = lost / (2 * (1 - fixed) + fixed) if fixed < 1 else lost
    mfu = facts.efficiency.mfu_ratio
    gained = f", and MFU goes from {percent(mfu)} to {percent(mfu / (1 - fixed / 2))}" if mfu else ""
    more = (
        "ccumulate over twice as many micro-batches [[accumulate]]: communication falls to about"
        f" {percent(accumulated)}{gained}."
    )
    overlapped = facts.communication.gradients_overlapped
    if overlapped and is_set("overlap_parameters", facts.software):
        return f"{advice.OVERLAPPED}: a{more}"
    first = advice.OVERLAP_PARAMETERS if overlapped else advice.OVERLAP_GRADIENTS
    return f"{first}: saves at most {percent(lost)} of the step. Or a{more}"


def _of_tensor_groups(facts: JobEvidence) -> list[str]:
    """What to do when tensor parallelism takes the time and no dimension is known to cost most."""
    busiest = max(facts.nccl.kinds, key=lambda kind: kind.kernel_ratio or 0.0, default=None)
    if busiest is not None and busiest.group == "tp":
        return [f"Most of it is {busiest.operation} of tensor groups: {advice.LESS_TENSOR}."]
    return []


def judge_links(facts: JobEvidence) -> Finding | None:
    """Groups whose transfers take far longer than they could; None when there is none."""
    slow = facts.nccl.slow_groups
    if not slow:
        return None
    # In the order of their ranks: groups that cost as much would change places at each look.
    costly = [group for group in slow if group.lost_ratio >= _AS_COSTLY * slow[0].lost_ratio]
    shown = sorted(costly, key=lambda group: (group.ranks, group.operation))[:_SHOWN]
    evidence = [f"{_describe(group)} ({facts.nccl.source})." for group in shown]
    evidence.append(
        "That is transfer alone: what ranks wait for each other is not in it, so no rank is to blame."
    )
    evidence += [f"{remark} (NCCL_DEBUG)" for remark in facts.transport_remarks]
    if len(slow) > len(shown):
        evidence.append(f"{len(slow) - len(shown)} more groups are slow.")
    return Finding(
        kind=Kind.SLOW_LINK,
        confidence=0.9 if facts.transport_remarks else max(_CONFIDENCE[group.reference] for group in slow),
        culprits=tuple(Culprit(kind="group", id=_name(group)) for group in shown),
        evidence=evidence,
        advice=advice.NVLINK_UNUSED if slow[0].reference is Reference.LINKS else advice.LINKS_OF_GROUP,
        gain_ratio=min(1.0, max(group.lost_ratio for group in slow)),
    )


def judge_tensor_groups(facts: JobEvidence) -> Finding | None:
    """What tensor groups over nodes cost; None where each is in one node, or that is unknown or little."""
    groups, mfu = facts.tensor_groups, facts.efficiency.mfu_ratio
    if groups is None or groups.nodes == 1:
        return None
    seen = next((one for one in facts.communication.dimensions if one.group == "tp"), None)
    measured = None
    if seen is not None:
        reported = (seen.lost_ratio, seen.transfer_ratio)
        measured = next((ratio for ratio in reported if ratio is not None), seen.share_ratio)
    evidence = [
        f"Tensor groups of {groups.size} ranks span {groups.nodes} nodes (layout and placement of ranks)."
    ]
    if measured is not None:
        if measured < THRESHOLDS.slow_link_cost_ratio:
            return None
        evidence.append(f"Their collectives take {percent(measured)} of a step (by dimension).")
    elif mfu is None or mfu >= THRESHOLDS.mfu_good_ratio:
        return None
    else:
        evidence.append(
            f"MFU is {percent(mfu)}; jobs whose tensor groups are in one node reach"
            f" {percent(THRESHOLDS.mfu_good_ratio, 0)}. What these collectives take, nothing here measures."
        )
    return Finding(
        kind=Kind.TENSOR_OVER_NODES,
        confidence=0.4 if measured is None else 0.8,
        evidence=evidence,
        advice=advice.tensor_groups_over_nodes(groups.size, groups.gpus_per_node),
        gain_ratio=1 - (mfu or 0.0) / THRESHOLDS.mfu_good_ratio if measured is None else measured,
    )


def _describe(group: SlowGroup) -> str:
    return (
        f"{group.operation} of group {_name(group)} reaches {group.bus_bytes_per_s / 1e9:.1f} GB/s of bus"
        f" bandwidth, {percent(1 / group.slowdown_ratio)} of {_REFERENCES[group.reference]}"
        f" ({group.expected_bytes_per_s / 1e9:.0f} GB/s)"
    )


def _name(group: SlowGroup) -> str:
    ranks = list(group.ranks)
    shown = ",".join(map(str, ranks if len(ranks) <= 8 else [*ranks[:4], "..", ranks[-1]]))
    return f"{group.group or 'unnamed'}[{shown}]"
