"""Whether links limit a job: findings that blame a group's transfers, or where it lies, and no rank."""

from __future__ import annotations

from perfd.analysis.collectives import Reference, SlowGroup
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Culprit, Finding, Kind, advice
from perfd.formatting import percent
from perfd.thresholds import THRESHOLDS

_SHOWN = 4
"""Groups that are described; the others are counted."""
_REFERENCES = {
    Reference.HISTORY: "what it reached earlier in this job",
    Reference.SISTERS: "the median of the other groups of its kind",
    Reference.LINKS: "one direction of the NVLink between its GPUs",
}
_CONFIDENCE = {Reference.HISTORY: 0.8, Reference.SISTERS: 0.8, Reference.LINKS: 0.6}


def judge_links(facts: JobEvidence) -> Finding | None:
    """Groups whose transfers take far longer than they could; None when there is none."""
    slow = facts.nccl.slow_groups
    if not slow:
        return None
    evidence = [f"{_describe(group)} ({facts.nccl.source})." for group in slow[:_SHOWN]]
    evidence.append(
        "That is transfer alone: what ranks wait for each other is not in it, so no rank is to blame."
    )
    evidence += [f"{remark} (NCCL_DEBUG)" for remark in facts.transport_remarks]
    if len(slow) > _SHOWN:
        evidence.append(f"{len(slow) - _SHOWN} more groups are slow.")
    return Finding(
        kind=Kind.SLOW_LINK,
        confidence=0.9 if facts.transport_remarks else max(_CONFIDENCE[group.reference] for group in slow),
        culprits=tuple(Culprit(kind="group", id=_name(group)) for group in slow[:_SHOWN]),
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
