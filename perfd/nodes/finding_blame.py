"""Which nodes and GPUs the findings about a job blame, and what that costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from perfd.analysis.diagnosis import JobSummary
from perfd.analysis.findings import Finding, Kind
from perfd.nodes.incidents import IncidentKind
from perfd.thresholds import THRESHOLDS

Place = tuple[str, str]
"""Node and index of the GPU, empty when it is not known."""

_KINDS = {
    Kind.STRAGGLER: IncidentKind.STRAGGLER,
    Kind.THROTTLING: IncidentKind.THROTTLING,
    Kind.HOST_CONTENTION: IncidentKind.HOST_CONTENTION,
    Kind.HANG: IncidentKind.HANG,
    Kind.SLOW_LINK: IncidentKind.SLOW_LINK,
}
"""Findings about hardware or its node. What a job's own design costs blames no node."""
_WHOLE_NODE = {IncidentKind.HOST_CONTENTION, IncidentKind.SLOW_LINK}
_MEASURED_EACH = {IncidentKind.THROTTLING}
"""Each culprit is measured on its own, so that many do not make each of them less certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """A finding blames a node or GPU now."""

    node: str
    kind: IncidentKind
    gpu: str = ""
    weight: float = 1.0
    lost_gpus: float = 0.0
    """GPUs whose work is lost by it at this moment, of all GPUs of the job."""
    evidence: str = ""


def blames_of(summary: JobSummary, places: Mapping[int, Place]) -> list[Blame]:
    """Whom a job's findings blame now; `places` is where each rank is. A place is blamed once for a kind."""
    blames: list[Blame] = []
    for finding in summary.findings:
        kind = _KINDS.get(finding.kind)
        if kind is None or finding.confidence < THRESHOLDS.finding_alert_confidence_ratio:
            continue
        culprits = list(dict.fromkeys(_culprits(finding, kind, summary, places)))
        gpus = summary.parallel.world_size or len(places) or len(culprits)
        lost = gpus * (1.0 if kind is IncidentKind.HANG else min(1.0, finding.gain_ratio or 0.0))
        weight = kind.weight * (1.0 if kind in _MEASURED_EACH else 1 / max(1, len(culprits)))
        blames += [
            Blame(
                node=node,
                gpu=gpu,
                kind=kind,
                weight=weight,
                lost_gpus=lost / len(culprits),
                evidence=finding.evidence[0] if finding.evidence else finding.headline,
            )
            for node, gpu in culprits
        ]
    return blames


def _culprits(
    finding: Finding, kind: IncidentKind, summary: JobSummary, places: Mapping[int, Place]
) -> Sequence[Place]:
    found: list[Place] = []
    for culprit in finding.culprits:
        if culprit.kind == "rank" and isinstance(culprit.id, int):
            found += _of_ranks([culprit.id], places)
        elif culprit.kind == "gpu":
            node, slash, gpu = str(culprit.id).rpartition("/")
            found += [(node, gpu)] if slash and node else []
        elif culprit.kind == "node":
            found.append((str(culprit.id), ""))
    if kind is IncidentKind.SLOW_LINK:
        found = [place for group in summary.nccl.slow_groups for place in _of_ranks(group.ranks, places)]
    return [(node, "") for node, _ in found] if kind in _WHOLE_NODE else found


def _of_ranks(ranks: Iterable[int], places: Mapping[int, Place]) -> list[Place]:
    return [places[rank] for rank in ranks if rank in places]
