"""Whose fault it is: findings that name a rank or a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfd.analysis.collectives import LateTogether, NcclRank
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.diagnosis.own_past_findings import (
    by_own_gpu,
    by_own_past,
    by_stalls,
    may_be_last,
    may_read_for_others,
    of_root,
    stalls_of,
)
from perfd.analysis.findings import Culprit, Finding, Kind, advice
from perfd.analysis.steps import DataLoading
from perfd.analysis.stragglers import Late, Pattern, Straggler, late, slow_together
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


def one_rank_loads_slowly(data: DataLoading) -> bool:
    """Whether the slowest rank loads data for a good part of a step and the fastest does not."""
    return (
        data.share_ratio is not None
        and data.least_ratio is not None
        and (data.share_ratio - data.least_ratio >= THRESHOLDS.data_loading_spread_ratio)
    )


def judge_straggler(facts: JobEvidence) -> Finding | None:
    """The rank that the others wait for, or its role if it may wait for data itself; None without one."""
    found = _slow_rank(facts)
    if found is not None and found.kind is Kind.STRAGGLER:
        found = _with_others_alike(facts, found)
    if found is None or not may_read_for_others(facts, found.concerned_ranks):
        return found
    return of_root(found)


def _with_others_alike(facts: JobEvidence, found: Finding) -> Finding:
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
            evidence=(*found.evidence, *(_describe(one) for one in alike if one.rank != culprits[0])),
            gain_ratio=max(found.gain_ratio or 0.0, min(one.wait_ratio for one in alike)),
        )
    return found


def _slow_rank(facts: JobEvidence) -> Finding | None:
    """By when ranks arrive, by timers of each rank or by GPM."""
    by_arrivals = _last_to_arrive(facts)
    if by_arrivals is not None:
        return by_arrivals
    if facts.nccl.stalling is not None:
        return by_stalls(facts, facts.nccl.stalling)
    if facts.nccl.slow_since is not None and not may_be_last(facts, facts.nccl.slow_since):
        return by_own_past(facts, facts.nccl.slow_since)
    if facts.stragglers_by_timers:
        return _by_timers(facts, facts.stragglers_by_timers[0])
    for straggler in facts.stragglers_by_activity:
        finding = _by_activity(facts, straggler)
        if finding is not None:
            return finding
    return by_own_gpu(facts)


def _last_to_arrive(facts: JobEvidence) -> Finding | None:
    """A rank, all of a node, or ranks of which it is unknown who is slow; None where none is late."""
    others = (*facts.stragglers_by_timers, *facts.stragglers_by_activity)
    layout = facts.parallel
    arrivals = late(
        facts.nccl.ranks,
        {straggler.rank for straggler in others},
        steps_known=facts.step_time.median is not None,
        inner_groups=any((size or 1) > 1 for size in (layout.tp, layout.cp, layout.pp)),
    )
    named = {straggler.rank for straggler in others[:1]}
    if arrivals is not None and arrivals.rank is not None:
        named.add(arrivals.rank.rank)
    # A node that is one tensor or context group is late with any of its ranks.
    of_group = (layout.tp or 1) * (layout.cp or 1)
    nodes = [node for node in facts.nccl.late_nodes if len(node.ranks) > of_group]
    slow = slow_together(
        nodes,
        steps_known=facts.step_time.median is not None,
        inner_groups=any((size or 1) > 1 for size in (layout.tp, layout.cp)) or layout.pp != 1,
    )
    found = _of_those_together(facts, slow) if slow and named <= set(slow.ranks) else None
    if found is not None and (not named or found.culprits[0].kind == "node"):
        return found
    if arrivals is None:
        return None
    return _by_arrival(facts, arrivals, arrivals.rank) if arrivals.rank else _together(facts, arrivals)


def _of_those_together(facts: JobEvidence, slow: LateTogether) -> Finding | None:
    """Their node, or the one of them that the others wait for; None where it is unknown which that is."""
    evidence = [
        f"{rank_names(slow.ranks).capitalize()} arrive later than their peers on other nodes.",
        f"They do in {percent(slow.persistence_ratio)} of recent steps ({facts.nccl.source}).",
    ]
    if slow.whole and slow.node:
        culprit, look_at = Culprit(kind="node", id=slow.node), advice.slow_node(slow.node, slow.ranks)
        gained = f"As fast as those, node {slow.node} would save"
    elif not slow.whole and slow.awaited_rank is not None:
        rank = slow.awaited_rank
        culprit, look_at = Culprit(kind="rank", id=rank), advice.late_rank(rank)
        evidence.append(f"Among themselves all others wait, and rank {rank} does not.")
        gained = f"As fast as its peers, rank {rank} would save"
    else:
        return None
    return Finding(
        kind=Kind.STRAGGLER,
        confidence=0.8,
        culprits=(culprit,),
        ranks=tuple(slow.ranks) if slow.whole else (),
        evidence=[*evidence, f"{gained} {percent(slow.gain_ratio)} of the step."],
        advice=look_at,
        gain_ratio=slow.gain_ratio,
    )


def judge_throttling(facts: JobEvidence) -> Finding | None:
    """GPUs whose clock a limit holds down; None when none is."""
    if not facts.held_clocks:
        return None
    slowest = facts.held_clocks[0]
    evidence = [
        f"GPU {held.gpu.node}/{held.gpu.gpu}: {held.reason} in {percent(held.time_ratio)} of"
        f" {facts.activity.when}"
        + (f", SM clock at {percent(held.clock_ratio)} of its maximum" if held.clock_ratio else "")
        + " (NVML)."
        for held in facts.held_clocks[:8]
    ]
    return Finding(
        kind=Kind.THROTTLING,
        confidence=0.8 if slowest.clock_ratio is not None else 0.6,
        culprits=tuple(
            Culprit(kind="gpu", id=gpu)
            for gpu in dict.fromkeys(f"{held.gpu.node}/{held.gpu.gpu}" for held in facts.held_clocks)
        ),
        ranks=sorted({held.gpu.rank for held in facts.held_clocks if held.gpu.rank is not None}),
        evidence=evidence,
        advice=advice.THROTTLING,
        gain_ratio=None if slowest.clock_ratio is None else 1 - slowest.clock_ratio,
    )


def _by_arrival(facts: JobEvidence, arrivals: Late, slow: NcclRank) -> Finding:
    others = [*facts.stragglers_by_timers, *facts.stragglers_by_activity]
    agreeing = [straggler for straggler in others if straggler.rank == slow.rank]
    arrival = (
        f"Rank {slow.rank} is the last to arrive for {percent(arrivals.last_ratio)} of its peers' waiting in"
        f" collectives ({facts.nccl.source})."
    )
    own = _own_kernels(facts, slow, arrivals.gain_ratio)
    evidence = [
        arrival,
        f"As fast as its peers, it would save {percent(arrivals.gain_ratio)} of the step{own}.",
        *_over(slow),
        *_of_those(arrivals, slow),
        *stalls_of(facts, slow.rank),
        *(_describe(straggler) for straggler in agreeing),
    ]
    idle = any(straggler.pattern is Pattern.IDLE for straggler in agreeing)
    return Finding(
        kind=Kind.DATA_LOADING if idle and one_rank_loads_slowly(facts.data) else Kind.STRAGGLER,
        confidence=0.9 if agreeing else 0.8 if slow.busy_ratio is not None else 0.6,
        culprits=(Culprit(kind="rank", id=slow.rank),),
        evidence=evidence,
        advice=_look_at(agreeing[0]) if agreeing else advice.late_rank(slow.rank),
        gain_ratio=arrivals.gain_ratio,
        step_s=arrivals.step_s,
    )


def _own_kernels(facts: JobEvidence, slow: NcclRank, gain_ratio: float) -> str:
    """Communication of the rank beside that of its peers: the mean over ranks shows neither.

    Nothing where the others wait for longer than their usual kernels take: those are of the time before.
    """
    peers = [one.busy_ratio for one in facts.nccl.ranks if one.rank != slow.rank]
    known = [ratio for ratio in peers if ratio is not None]
    if slow.busy_ratio is None or (known and max(known) < gain_ratio):
        return ""
    others = f", those of the others {percent(float(np.mean(known)))}" if known else ""
    return f"; its own NCCL kernels take {percent(slow.busy_ratio)}{others}"


def _over(slow: NcclRank) -> list[str]:
    """That the steps in which it was late are over."""
    if slow.over_steps is None:
        return []
    over = f"In the newest {slow.over_steps:.0f} steps it was not late, so that it may be over"
    return [f"{over}; the loss is of the steps before."]


def _of_those(arrivals: Late, slow: NcclRank) -> list[str]:
    """Why it is this one, when others are late with it."""
    others = [rank for rank in arrivals.together if rank != slow.rank]
    if not others or slow.slowdown_ratio is None:
        return []
    shown = ", ".join(map(str, others[:8]))
    one = len(others) == 1
    who = f"Rank {shown} is late too, but it waits" if one else f"Ranks {shown} are late too, but they wait"
    return [
        f"{who} meanwhile.",
        f"Rank {slow.rank} works {slow.slowdown_ratio:.2f} times as long as its peers.",
    ]


def _together(facts: JobEvidence, arrivals: Late) -> Finding:
    shown = ", ".join(map(str, arrivals.together[:8]))
    return Finding(
        kind=Kind.STRAGGLER,
        confidence=0.4,
        evidence=[
            f"Ranks {shown} are late together ({facts.nccl.source}).",
            f"As fast as their peers, they would save {percent(arrivals.gain_ratio)} of the step.",
            "Which of them is slow is unknown.",
        ],
        ranks=tuple(arrivals.together),
        advice=advice.late_ranks(arrivals.together),
        gain_ratio=arrivals.gain_ratio,
        step_s=arrivals.step_s,
    )


def _by_timers(facts: JobEvidence, straggler: Straggler) -> Finding:
    agreed = any(other.rank == straggler.rank for other in facts.stragglers_by_activity)
    evidence = [
        _describe(straggler),
        f"Its peers wait for it about {percent(straggler.wait_ratio)} of each step.",
    ]
    if agreed:
        evidence.append("The activity of its GPU (NVML) shows the same.")
    return Finding(
        kind=Kind.STRAGGLER,
        confidence=0.9 if agreed else 0.8,
        culprits=(Culprit(kind="rank", id=straggler.rank),),
        evidence=[*evidence, *_clock_of(facts, straggler)],
        advice=_look_at(straggler),
        gain_ratio=straggler.wait_ratio,
    )


def _by_activity(facts: JobEvidence, straggler: Straggler) -> Finding | None:
    spread = _spread(facts)
    if spread is not None and spread < straggler.wait_ratio / 2:
        # All ranks need the same time by their timers, so the GPU's activity has another cause.
        return None
    if straggler.pattern is Pattern.IDLE and (
        _costs_nothing(facts, straggler) or _partners_idle(facts, straggler)
    ):
        return None
    idle = straggler.pattern is Pattern.IDLE
    slow_input = idle and one_rank_loads_slowly(facts.data)
    evidence = [_describe(straggler)]
    evidence.append(f"Its peers wait for it about {percent(straggler.wait_ratio)} of each step.")
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
        advice=_look_at(straggler),
        gain_ratio=straggler.wait_ratio,
    )


def _costs_nothing(facts: JobEvidence, straggler: Straggler) -> bool:
    """Whether steps would be no shorter if the rank arrived with its peers: their hosts are late in turn."""
    gains = [one.gain_ratio for one in facts.nccl.ranks if one.rank == straggler.rank]
    known = [gain for gain in gains if gain is not None]
    return bool(known) and max(known) < _COSTS_NOTHING * straggler.wait_ratio


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


def _describe(straggler: Straggler) -> str:
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


def _look_at(straggler: Straggler) -> str:
    idle = straggler.pattern is Pattern.IDLE
    return advice.slow_host(straggler.rank) if idle else advice.slow_gpu(straggler.rank)
