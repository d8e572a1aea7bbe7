"""Which finding explains which: roots in the order to act on, each with the symptoms that it explains.

The only ranking of findings: live jobs, summaries and traces use it, so that they agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto

from perfd.analysis.findings.finding import Effect, Finding
from perfd.analysis.findings.finding_kind import COMPUTATION, FAULTS, Kind
from perfd.thresholds import THRESHOLDS


class SymptomPart(Enum):
    """Which part of a symptom's time a cause may explain."""

    WHOLE = auto()
    WAITING = auto()
    """What waits for other ranks, and the job's design does not require."""
    KNOWN_WAITING = auto()
    """The same if waiting is measured: a cause that delays all ranks needs that to explain waiting."""
    MOVING = auto()
    """The rest."""
    SAME_RANK = auto()
    """All of it, if both name the same rank: what keeps one rank says nothing of the others."""


_FAULT_WEIGHT = 5.0
"""What is broken comes before a loss by design up to this many times as large: one action ends it, and a job
that is half bubble by design still needs to know of a rank that costs a tenth of it."""
_IDLE = (Kind.HOST_BOUND, Kind.LAUNCH_BOUND, Kind.SYNCHRONIZATION)
_STALLS = (Kind.PIPELINE_BUBBLE, Kind.PIPELINE_IMBALANCE)
_WAITS: Mapping[Kind, SymptomPart] = dict.fromkeys((Kind.COMMUNICATION, *_STALLS), SymptomPart.WAITING)

EXPLAINS: Mapping[Kind, Mapping[Kind, SymptomPart]] = {
    Kind.THROTTLING: {Kind.STRAGGLER: SymptomPart.SAME_RANK, **_WAITS},
    Kind.TENSOR_OVER_NODES: {Kind.COMMUNICATION: SymptomPart.MOVING},
    Kind.SLOW_LINK: {Kind.COMMUNICATION: SymptomPart.MOVING},
    Kind.DATA_LOADING: {
        Kind.STRAGGLER: SymptomPart.SAME_RANK,
        Kind.LATE_HOSTS: SymptomPart.WHOLE,
        **dict.fromkeys(_IDLE, SymptomPart.WHOLE),
        **_WAITS,
    },
    Kind.HOST_CONTENTION: {
        Kind.STRAGGLER: SymptomPart.SAME_RANK,
        Kind.DATA_LOADING: SymptomPart.WHOLE,
        Kind.LATE_HOSTS: SymptomPart.WHOLE,
        **dict.fromkeys(_IDLE, SymptomPart.WHOLE),
        **_WAITS,
    },
    Kind.GPU_CONTENTION: {Kind.STRAGGLER: SymptomPart.SAME_RANK},
    Kind.LATE_HOSTS: {**dict.fromkeys(_IDLE, SymptomPart.WHOLE), **_WAITS},
    Kind.PERIODIC_STALL: {
        Kind.STRAGGLER: SymptomPart.SAME_RANK,
        **dict.fromkeys(_IDLE, SymptomPart.WHOLE),
        **_WAITS,
    },
    Kind.SEQUENCE_IMBALANCE: _WAITS,
    Kind.EXPERT_IMBALANCE: {Kind.STRAGGLER: SymptomPart.SAME_RANK, **_WAITS},
    Kind.STRAGGLER: {
        Kind.LATE_HOSTS: SymptomPart.WHOLE,
        **dict.fromkeys(_IDLE, SymptomPart.SAME_RANK),
        **_WAITS,
    },
    Kind.HOST_TRANSFER: {Kind.SYNCHRONIZATION: SymptomPart.WHOLE},
    **{kind: {Kind.COMMUNICATION: SymptomPart.KNOWN_WAITING} for kind in _IDLE},
    Kind.LAUNCH_BOUND: {
        Kind.HOST_BOUND: SymptomPart.WHOLE,
        Kind.COMMUNICATION: SymptomPart.KNOWN_WAITING,
    },
    **{kind: {Kind.COMMUNICATION: SymptomPart.WAITING} for kind in _STALLS},
}
"""Cause to symptom, without cycles. A GPU that waits for another rank is in a kernel of NCCL, not idle."""


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """The root causes, the one to act on first at the front; what they explain is in their `effects`."""
    causes = [cause_of(symptom, findings) for symptom in findings]
    effects: list[list[Effect]] = [[] for _ in findings]
    longer = list(findings)
    for symptom, direct in zip(findings, causes, strict=True):
        if direct is not None:
            root = _root(direct, causes)
            effects[root].append(_effect(findings[direct], symptom))
            if longer[root].since_step is None and symptom.longer_for_s is not None:
                longer[root] = symptom
    roots = [
        replace(_with_effects(root, found), longer_for_s=since.longer_for_s, since_step=since.since_step)
        for root, found, since, cause in zip(findings, effects, longer, causes, strict=True)
        if cause is None
    ]
    return sorted(roots, key=acting_order)


def acting_order(finding: Finding) -> tuple[bool, bool, bool, float]:
    """What hangs, then other jobs on its GPUs, then by what there is to gain weighed by how sure that is.

    What is broken weighs more.
    """
    gain = finding.gain_ratio
    weight = finding.confidence * (_FAULT_WEIGHT if finding.kind in FAULTS else 1.0)
    own = finding.kind is not Kind.GPU_CONTENTION
    return finding.kind is not Kind.HANG, own, gain is None, -weight * (gain or 0.0)


def computation_leads(roots: Sequence[Finding], computation: Finding) -> bool:
    """Whether the computation is what to name first, as nothing else costs much of a step."""
    if not roots:
        return True
    first = roots[0]
    if first.kind in {Kind.HANG, Kind.GPU_CONTENTION}:
        return False
    if first.gain_ratio is None:
        # Full memory costs no time: it is said after what the job does with its time.
        return True
    small = first.gain_ratio < THRESHOLDS.headline_ratio
    return small and first.kind not in FAULTS and computation.kind in COMPUTATION


def explains(cause: Finding, symptom: Finding) -> bool:
    """Whether the one may cause the other: by kind, of the same ranks, at the same time of a step."""
    part = EXPLAINS.get(cause.kind, {}).get(symptom.kind)
    if part is None or _explainable(symptom, part) == 0:
        return False
    of_cause, of_symptom = set(cause.concerned_ranks), set(symptom.concerned_ranks)
    if part is SymptomPart.SAME_RANK:
        return bool(of_cause & of_symptom)
    if part is SymptomPart.KNOWN_WAITING:
        return symptom.waiting_ratio is not None
    return part is SymptomPart.WAITING or not (of_cause and of_symptom and of_cause.isdisjoint(of_symptom))


def explained_ratio(cause: Finding, symptom: Finding) -> float | None:
    """How much of a step of the symptom's loss the cause explains at most; None where a size is unknown."""
    explainable = _explainable(symptom, EXPLAINS[cause.kind][symptom.kind])
    return None if cause.gain_ratio is None or explainable is None else min(cause.gain_ratio, explainable)


def _explainable(symptom: Finding, part: SymptomPart) -> float | None:
    gain, waiting = symptom.gain_ratio, symptom.waiting_ratio
    if gain is None or waiting is None or part in {SymptomPart.WHOLE, SymptomPart.SAME_RANK}:
        return gain
    return gain - waiting if part is SymptomPart.MOVING else waiting


def cause_of(symptom: Finding, findings: Sequence[Finding]) -> int | None:
    """The place of the finding that explains most of it; None where what is left weighs more than that."""
    best, most = None, 0.0
    for place, cause in enumerate(findings):
        if not explains(cause, symptom):
            continue
        explained = explained_ratio(cause, symptom)
        left = 0.0 if explained is None or symptom.gain_ratio is None else symptom.gain_ratio - explained
        weight = cause.confidence * (1.0 if explained is None else explained)
        if weight > most and left * symptom.confidence <= cause.confidence * (cause.gain_ratio or 0.0):
            best, most = place, weight
    return best


def _root(place: int, causes: Sequence[int | None]) -> int:
    above = causes[place]
    return place if above is None else _root(above, causes)


def _effect(cause: Finding, symptom: Finding) -> Effect:
    return Effect(
        kind=symptom.kind,
        culprits=symptom.culprits,
        evidence=symptom.evidence,
        gain_ratio=symptom.gain_ratio,
        explained_ratio=explained_ratio(cause, symptom),
    )


def _with_effects(root: Finding, found: Sequence[Effect]) -> Finding:
    """The root with them, the largest first; one whose cost is unknown costs what it explains.

    What the root's evidence says already is not said again.
    """
    effects = sorted(found, key=lambda effect: -(effect.gain_ratio or 0.0))
    gain = root.gain_ratio
    if gain is None and effects:
        gain = effects[0].gain_ratio
    said = set(root.evidence)
    news = [
        replace(effect, evidence=[one for one in effect.evidence if one not in said])
        for effect in effects
        if not effect.evidence or effect.unexplained_ratio or not said.issuperset(effect.evidence)
    ]
    return replace(root, effects=tuple(news), gain_ratio=gain)
