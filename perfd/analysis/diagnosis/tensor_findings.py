"""Whether tensor parallelism lies over nodes, whose links are an order of magnitude slower."""

from __future__ import annotations

from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Finding, Kind, advice
from perfd.formatting import percent
from perfd.thresholds import THRESHOLDS


def judge_tensor_groups(facts: JobEvidence) -> Finding | None:
    """What tensor groups over nodes cost; None where each is in one node, or that is unknown or costs little."""
    groups, mfu = facts.tensor_groups, facts.efficiency.mfu_ratio
    if groups is None or groups.nodes == 1:
        return None
    seen = next((one for one in facts.communication.dimensions if one.group == "tp"), None)
    measured = None if seen is None else seen.lost_ratio
    evidence = [
        f"Tensor groups of {groups.size} ranks lie on {groups.nodes} nodes (layout and placement of ranks)."
    ]
    if measured is not None:
        if measured < THRESHOLDS.slow_link_cost_ratio:
            return None
        evidence.append(f"Their collectives cost {percent(measured)} of a step (by dimension).")
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
