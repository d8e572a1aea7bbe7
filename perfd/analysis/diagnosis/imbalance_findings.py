"""Whether work is unequal: sequences of unequal length, or experts of some ranks that get more tokens."""

from __future__ import annotations

from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Culprit, Finding, Kind, advice
from perfd.formatting import percent, rank_names
from perfd.thresholds import THRESHOLDS


def judge_sequences(facts: JobEvidence) -> Finding | None:
    """Data that costs ranks unequal time; None when their work is alike, or one rank is always slow."""
    sequences = facts.sequences
    if sequences is None:
        return None
    return Finding(
        kind=Kind.SEQUENCE_IMBALANCE,
        confidence=0.8,
        evidence=[
            f"Compute times of ranks with equal work spread by {percent(sequences.spread_ratio)} (timers).",
            f"Forward and backward go together (correlation {sequences.correlation:.2f}): it is the data.",
            "The slowest rank changes from step to step.",
            f"The others wait about {percent(sequences.lost_ratio)} of a step.",
        ],
        advice=advice.SEQUENCES,
        gain_ratio=sequences.lost_ratio,
    )


def judge_experts(facts: JobEvidence, *, straggler: Finding | None) -> Finding | None:
    """The rank whose experts have the most work, which the others wait for; None where that costs little.

    A `straggler` that is the same rank is this by another measure: what its peers lose counts every layer,
    while GPUs are read less often than once a step.
    """
    experts = facts.experts
    if experts is None or experts.gain_ratio < THRESHOLDS.expert_imbalance_cost_ratio:
        return None
    late = straggler if straggler is not None and experts.rank in straggler.concerned_ranks else None
    as_straggler = 0.0 if late is None else late.gain_ratio or 0.0
    others = rank_names([rank for rank in experts.ranks if rank != experts.rank])
    group, persistence = rank_names(experts.ranks), percent(experts.persistence_ratio)
    work = (
        f"Tensor cores of rank {experts.rank} do {percent(experts.work_ratio - 1)} more work than the mean of"
        f" its expert-parallel group ({group}), in {persistence} of steps (GPM: activity times clock)."
    )
    time = (
        f"It computes at least {percent(experts.compute_ratio)} of a step, the mean of its group"
        f" {percent(experts.mean_compute_ratio)} (GPM: SMs active, less what NCCL's kernels occupy)."
    )
    role = (
        f"Its layers and batch are those of {others}: the router sends more tokens to its experts, and the"
        " hardware is not at fault."
    )
    return Finding(
        kind=Kind.EXPERT_IMBALANCE,
        confidence=0.6,
        culprits=(Culprit(kind="experts of rank", id=experts.rank),),
        evidence=(work, time, role),
        advice=advice.BALANCE_EXPERTS,
        gain_ratio=max(experts.gain_ratio, as_straggler),
        ranks=(experts.rank,),
    )
