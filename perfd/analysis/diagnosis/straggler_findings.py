"""Whose fault it is: findings that name a rank or a GPU.

The collective of a stage shows that a rank came late, not why: in a pipeline all stages of a slow rank's
pipeline are late for their own collectives, and in a tensor group its partners are. Those wait for the slow
rank, too, only elsewhere: in receives, in collectives of the tensor group. So of all that are late, the one
that waits least by its peers is the slow one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from perfd.analysis.collectives import LateTogether, NcclRank
from perfd.analysis.diagnosis.imbalance_findings import (
    by_activity,
    by_timers,
    described,
    look_at,
    one_rank_loads_slowly,
    with_others_alike,
)
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
from perfd.analysis.stragglers import Pattern, slow_together
from perfd.formatting import percent, rank_names
from perfd.thresholds import THRESHOLDS

_SIGMAS = 5.0
"""Standard errors that a gain must exceed. If two ranks take turns being late, as with unequal sequence
lengths, one comes last in nearly all blocks of a window by chance in 1 of 100 windows. With 3 sigmas, one of
them would be named in 1 of 500, with 5 in 1 of 11,000 (400,000 simulated windows of 30 steps, normal and
uniform times)."""
_SURE_SIGMAS = 7.0
"""With fewer, one round is too little: hosts of healthy jobs were late by 6.1 and 6.6 for one. Chosen."""
_NOTABLE = 0.1
"""Of a row that may be a micro-batch: a rank that costs less is not named by one round. Chosen."""
_LEAST_SLOWDOWN = 0.03
"""By which the slowest rank leads the next one: less is the spread of healthy GPUs. Chosen."""
_EXPLAINS = 0.6
"""Of what ranks are late together, what the slow one's own excess must be."""
_MOSTLY_SEEN = 0.8
"""Least share of a rank's operations that must be known: the rank that lost more of them seems to wait less.
Chosen."""
_ALONE_IDLE = (
    "Of the ranks that are late, only its GPU runs no kernel in the time by which steps are longer (NVML)."
)
_APART = 2.0
"""How many times as far above its peers the slowest must be as the next one that is late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """Ranks that are late for the collectives of their peers."""

    rank: NcclRank | None
    """The slow one; None if it is unknown which of them it is."""
    together: Sequence[int]
    """All that are late, with it."""
    gain_ratio: float
    """The share of a step that the job would gain without their excess over their peers."""
    last_ratio: float
    step_s: float | None = None
    """How long a step takes of which `gain_ratio` is a share."""
    over_steps: float | None = None
    """In how many of the newest steps the one that costs most was not late any more; None while it is."""


def judge_straggler(facts: JobEvidence) -> Finding | None:
    """The rank that the others wait for, or its role if it may wait for data itself; None without one."""
    found = _slow_rank(facts)
    if found is not None and found.kind is Kind.STRAGGLER:
        found = with_others_alike(facts, found)
    if found is None or not may_read_for_others(facts, found.concerned_ranks):
        return found
    return of_root(found)


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
        return by_timers(facts, facts.stragglers_by_timers[0])
    for straggler in facts.stragglers_by_activity:
        finding = by_activity(facts, straggler)
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
        idle=_idle_in_longer_steps(facts),
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
        culprit, hint = Culprit(kind="node", id=slow.node), advice.slow_node(slow.node, slow.ranks)
        gained = f"As fast as those, node {slow.node} would save"
    elif not slow.whole and slow.awaited_rank is not None:
        rank = slow.awaited_rank
        culprit, hint = Culprit(kind="rank", id=rank), advice.late_rank(rank)
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
        advice=hint,
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
    # What ranks cost together is that of the costliest: the slow one's own late steps may be others.
    over_steps = slow.over_steps if arrivals.over_steps is None else arrivals.over_steps
    alone_idle = _idle_among(arrivals.together, _idle_in_longer_steps(facts)) == slow.rank
    evidence = [
        arrival,
        f"As fast as its peers, it would save {percent(arrivals.gain_ratio)} of the step{own}.",
        *_over(over_steps),
        *([_ALONE_IDLE] if alone_idle else _of_those(arrivals, slow)),
        *stalls_of(facts, [slow.rank]),
        *(described(straggler) for straggler in agreeing),
    ]
    idle = any(straggler.pattern is Pattern.IDLE for straggler in agreeing)
    of_parts = facts.step_doubt is not None and arrivals.gain_ratio < _NOTABLE
    return Finding(
        kind=Kind.DATA_LOADING if idle and one_rank_loads_slowly(facts.data) else Kind.STRAGGLER,
        confidence=0.9 if agreeing else 0.8 if slow.busy_ratio is not None else 0.6,
        culprits=(Culprit(kind="rank", id=slow.rank),),
        evidence=evidence,
        advice=look_at(agreeing[0]) if agreeing else advice.late_rank(slow.rank),
        gain_ratio=arrivals.gain_ratio,
        step_s=arrivals.step_s,
        may_be_over=over_steps is not None,
        tentative=not agreeing and (facts.step_time.median is None or of_parts or _is_little(slow)),
    )


def _is_little(slow: NcclRank) -> bool:
    """Whether its gain is so little above its bound that the next round may not find it."""
    return (slow.gain_ratio or 0.0) < _SURE_SIGMAS * (slow.gain_doubt_ratio or 0.0)


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


def _over(over_steps: float | None) -> list[str]:
    """That the steps in which it was late are over."""
    if over_steps is None:
        return []
    over = f"In the newest {over_steps:.0f} steps it was not late, so that it may be over"
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


def late(
    ranks: Sequence[NcclRank],
    named_elsewhere: Collection[int] = (),
    *,
    idle: Collection[int] = (),
    steps_known: bool = True,
    inner_groups: bool = False,
) -> Late | None:
    """The rank that its peers wait for in NCCL's kernels, if enough is caused by one, else None.

    Persistence and magnitude are both needed: by chance some rank is always the last, and one that is always
    the last may be so by next to nothing. `named_elsewhere` are ranks that other evidence shows to be slow,
    and `idle` those whose GPUs run no kernel in the time by which steps are longer. Before `steps_known`,
    operations of one size count as a step each. With `inner_groups` ranks may be late because of others that
    are late with them.
    """
    least_ratio = (
        THRESHOLDS.straggler_certain_wait_ratio
        if steps_known
        else THRESHOLDS.straggler_wait_without_steps_ratio
    )
    costly = [rank for rank in ranks if _persistent(rank) and _costly(rank, least_ratio)]
    if not costly:
        return _alike(ranks, least_ratio)
    worst = max(costly, key=lambda rank: rank.gain_ratio or 0)
    # Who is late with it may by chance be a little under what is worth a name; and the slow one may cost its
    # own peers little, who wait for its pipeline elsewhere.
    least = (worst.gain_ratio or 0) / 2
    together = [rank for rank in ranks if _persistent(rank) or (rank.gain_ratio or 0) >= least]
    return Late(
        rank=_slowest(together, named_elsewhere, idle, inner_groups=inner_groups),
        together=tuple(rank.rank for rank in together),
        gain_ratio=worst.gain_ratio or 0.0,
        last_ratio=worst.last_ratio or 0.0,
        step_s=worst.step_s,
        over_steps=worst.over_steps,
    )


def _alike(ranks: Sequence[NcclRank], least_ratio: float) -> Late | None:
    """Ranks that are late by as much, so that each is the last in turn: a few of many, as on one bad node."""
    alike = [rank for rank in ranks if _always_late(rank) and _costly(rank, least_ratio)]
    last_ratio = sum(rank.last_ratio or 0.0 for rank in alike)
    if len(alike) < 2 or last_ratio < THRESHOLDS.straggler_share_ratio:
        return None
    worst = max(alike, key=lambda rank: rank.gain_ratio or 0.0)
    return Late(
        rank=None,
        together=tuple(rank.rank for rank in alike),
        gain_ratio=worst.gain_ratio or 0.0,
        last_ratio=last_ratio,
        step_s=worst.step_s,
    )


def _always_late(rank: NcclRank) -> bool:
    return (rank.persistence_ratio or 0) >= THRESHOLDS.straggler_block_persistence_ratio


def _persistent(rank: NcclRank) -> bool:
    return _always_late(rank) and (rank.last_ratio or 0) >= THRESHOLDS.straggler_share_ratio


def _costly(rank: NcclRank, least_ratio: float) -> bool:
    # Healthy jobs have less; with few steps, chance can cause more.
    error = rank.gain_error_ratio or 0.0
    least = max(least_ratio + error, _SIGMAS * error)
    return (rank.gain_ratio or 0) >= least


def _idle_in_longer_steps(facts: JobEvidence) -> set[int]:
    """Ranks whose GPUs run no kernel in the time by which steps are longer, unless some GPU has more work."""
    longer = facts.longer_steps
    if longer is None or (longer.computing_ratio > THRESHOLDS.late_hosts_waiting_compute_ratio).any():
        return set()
    return set(longer.ranks[longer.running_ratio <= THRESHOLDS.late_hosts_idle_ratio].tolist())


def _idle_among(together: Sequence[int], idle: Collection[int]) -> int | None:
    """The host that is late of ranks that are late together: the others wait for it in kernels of NCCL."""
    found = [rank for rank in together if rank in idle]
    return found[0] if len(found) == 1 < len(together) else None


def _slowest(
    together: Sequence[NcclRank],
    named_elsewhere: Collection[int],
    idle: Collection[int],
    *,
    inner_groups: bool,
) -> NcclRank | None:
    late_host = _idle_among([rank.rank for rank in together], idle)
    confirmed = [rank for rank in together if rank.rank in named_elsewhere] or [
        rank for rank in together if rank.rank == late_host
    ]
    if confirmed:
        return confirmed[0]
    alone = len(together) == 1
    if alone and not inner_groups:
        return together[0]
    if any(rank.seen_ratio is not None and rank.seen_ratio < _MOSTLY_SEEN for rank in together):
        return None
    if alone:
        return together[0]
    # Who waits so much less than its peers that it explains how late they are together.
    least = max(rank.gain_ratio or 0.0 for rank in together) * _EXPLAINS
    by_excess = sorted(together, key=lambda rank: -(rank.excess_ratio or 0.0))
    most, next_one = ((rank.excess_ratio or 0.0) for rank in by_excess[:2])
    if most >= least > next_one and most >= _APART * next_one:
        return by_excess[0]
    by_slowdown = sorted(together, key=lambda rank: -(rank.slowdown_ratio or 0))
    first, second = (max(0.0, (rank.slowdown_ratio or 0) - 1) for rank in by_slowdown[:2])
    apart = first - second >= _LEAST_SLOWDOWN and first >= _APART * second
    return by_slowdown[0] if apart else None
