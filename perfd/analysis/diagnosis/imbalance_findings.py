"""Whether work is unequal: one rank computes longer, sequences differ in length, or experts get more tokens.

How long a rank computes is known by its timers, or by the activity of its GPU.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Culprit, Finding, Kind, advice
from perfd.analysis.steps import DataLoading
from perfd.analysis.stragglers import Pattern, Straggler
from perfd.formatting import percent, rank_names
from perfd.model import GpuColumn
from perfd.thresholds import THRESHOLDS

_ALIKE = 0.75
"""Of how long peers would wait for the slowest rank, what makes another one as slow. Chosen."""
_MOST_ALIKE = 4
"""Ranks that are named together: more are another kind of job. Chosen."""
_COSTS_NOTHING = 0.25
"""Of what the GPUs seem to show that peers wait for a rank, that these lose at least by when ranks arrive, if
that is known: idle time of a GPU that no other rank waits for costs nothing. Chosen."""
_SLOWER_CLOCK = 0.95
"""Of the peers' median clock; above it the clock is not evidence. Chosen."""


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


def one_rank_loads_slowly(data: DataLoading) -> bool:
    """Whether the slowest rank loads data for a good part of a step and the fastest does not."""
    return (
        data.share_ratio is not None
        and data.least_ratio is not None
        and (data.share_ratio - data.least_ratio >= THRESHOLDS.data_loading_spread_ratio)
    )


def with_others_alike(facts: JobEvidence, found: Finding) -> Finding:
    """The finding of a rank, and of others that compute about as much longer: each hides what others cost."""
    culprits = [culprit.id for culprit in found.culprits if culprit.kind == "rank"]
    for sorted_worst_first in (facts.stragglers_by_timers, facts.stragglers_by_activity):
        computing = [one for one in sorted_worst_first if one.pattern is not Pattern.IDLE]
        alike = [one for one in computing if one.wait_ratio >= _ALIKE * computing[0].wait_ratio]
        if not 2 <= len(alike) <= _MOST_ALIKE or not set(culprits) <= {one.rank for one in alike}:
            continue
        return replace(
            found,
            culprits=tuple(Culprit(kind="rank", id=rank) for rank in sorted(one.rank for one in alike)),
            evidence=(*found.evidence, *(described(one) for one in alike if one.rank != culprits[0])),
            gain_ratio=max(found.gain_ratio or 0.0, min(one.wait_ratio for one in alike)),
        )
    return found


def by_timers(facts: JobEvidence, straggler: Straggler) -> Finding:
    """A rank that computes longer than its peers by their timers."""
    agreed = any(other.rank == straggler.rank for other in facts.stragglers_by_activity)
    evidence = [
        described(straggler),
        f"Its peers wait for it about {percent(straggler.wait_ratio)} of each step.",
    ]
    if agreed:
        evidence.append("The activity of its GPU (NVML) shows the same.")
    return Finding(
        kind=Kind.STRAGGLER,
        confidence=0.9 if agreed else 0.8,
        culprits=(Culprit(kind="rank", id=straggler.rank),),
        evidence=[*evidence, *_clock_of(facts, straggler)],
        advice=look_at(straggler),
        gain_ratio=straggler.wait_ratio,
    )


def by_activity(facts: JobEvidence, straggler: Straggler) -> Finding | None:
    """A rank whose GPU shows that the others wait for it; None where other evidence contradicts that."""
    spread = _spread(facts)
    if spread is not None and spread < straggler.wait_ratio / 2:
        # All ranks need the same time by their timers, so the GPU's activity has another cause.
        return None
    idle = straggler.pattern is Pattern.IDLE
    gain_ratio = _replayed_gain_ratio(facts, straggler)
    if gain_ratio < _COSTS_NOTHING * straggler.wait_ratio:
        if idle:
            return None
        # A rank with more work alone gains nothing if another one has more work, too.
        gain_ratio = straggler.wait_ratio
    if idle and _partners_idle(facts, straggler):
        return None
    slow_input = idle and one_rank_loads_slowly(facts.data)
    evidence = [described(straggler)]
    evidence.append(f"Its peers wait for it about {percent(straggler.wait_ratio)} of each step.")
    if gain_ratio < straggler.wait_ratio:
        evidence.append(f"As fast as its peers, it would save {percent(gain_ratio)} of the step.")
    if spread is not None:
        evidence.append(
            f"The slowest rank computes {percent(spread)} of a step longer than the fastest (timers)."
        )
    if not idle and one_rank_loads_slowly(facts.data):
        evidence.append(
            f"One rank spends {percent(facts.data.share_ratio or 0)} of a step on data loading"
            f" ({facts.data.source}), but its tensor cores are busy: this is GPU work."
        )
    return Finding(
        kind=Kind.DATA_LOADING if slow_input else Kind.STRAGGLER,
        confidence=0.9 if spread is not None else 0.6,
        culprits=(Culprit(kind="rank", id=straggler.rank),),
        evidence=[*evidence, *_clock_of(facts, straggler)],
        advice=look_at(straggler),
        gain_ratio=gain_ratio,
    )


def _replayed_gain_ratio(facts: JobEvidence, straggler: Straggler) -> float:
    """The share of a step that the job would gain if it arrived with its peers; what they wait if unknown.

    It is less where their hosts are late in turn.
    """
    gains = [one.gain_ratio for one in facts.nccl.ranks if one.rank == straggler.rank]
    return min(max((gain for gain in gains if gain is not None), default=math.inf), straggler.wait_ratio)


def _partners_idle(facts: JobEvidence, straggler: Straggler) -> bool:
    """Whether others of its tensor group, which meet it in every layer, idle as well instead of waiting."""
    tensor = facts.parallel.tp or 1
    running = facts.activity.of_gpus(facts.activity.kernel_metric).tolist()
    by_rank = {key.rank: ratio for key, ratio in zip(facts.activity.gpus, running, strict=True)}
    first = straggler.rank - straggler.rank % tensor
    partners = [by_rank.get(rank) for rank in range(first, first + tensor) if rank != straggler.rank]
    waiting = by_rank.get(straggler.rank, np.nan) + straggler.wait_ratio / 2
    return any(ratio is not None and ratio < waiting for ratio in partners)


def _spread(facts: JobEvidence) -> float | None:
    """How unequal ranks are by minima and maxima; with several stages it mixes in the stages' difference."""
    return facts.breakdown.spread_ratio if facts.parallel.pp == 1 else None


def described(straggler: Straggler) -> str:
    """By what a rank differs from its peers, in a sentence."""
    source = "NVML" if straggler.source == "nvml" else straggler.source
    steps = f"in {percent(straggler.persistence_ratio)} of steady steps ({source})"
    if straggler.pattern is Pattern.SLOW_COMPUTE:
        return f"Rank {straggler.rank} computes {straggler.ratio:.2f} times as long as its peers {steps}."
    if straggler.pattern is Pattern.IDLE:
        return (
            f"The GPU of rank {straggler.rank} runs no kernel for {percent(straggler.ratio - 1)} more of the"
            f" time than those of its peers, which wait in NCCL kernels, {steps}."
        )
    return (
        f"The tensor cores of rank {straggler.rank} are active {straggler.ratio:.2f} times as much as those"
        f" of its peers, whose SMs idle meanwhile, {steps}."
    )


def _clock_of(facts: JobEvidence, straggler: Straggler) -> list[str]:
    clocks = facts.activity.of_gpus(GpuColumn.SM_CLOCK)
    own = [
        clock for key, clock in zip(facts.activity.gpus, clocks, strict=True) if key.rank == straggler.rank
    ]
    others = [
        clock for key, clock in zip(facts.activity.gpus, clocks, strict=True) if key.rank in straggler.peers
    ]
    if not own or not others or not np.isfinite([*own, *others]).all():
        return []
    relative = own[0] / float(np.median(others))
    if relative > _SLOWER_CLOCK:
        return []
    return [f"Its SM clock is {percent(relative)} of theirs (NVML)."]


def look_at(straggler: Straggler) -> str:
    """Advice on a rank: its host where its GPU idles, else its GPU."""
    idle = straggler.pattern is Pattern.IDLE
    return advice.slow_host(straggler.rank) if idle else advice.slow_gpu(straggler.rank)
