"""Whose fault it is: findings that name a rank or a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfd.analysis.collectives import NcclRank, SlowRank, StallingRank
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Culprit, Finding, Kind, advice
from perfd.analysis.steps import DataLoading, LongerSteps
from perfd.analysis.stragglers import Late, OwnWork, Pattern, ReadingRank, Straggler, late
from perfd.formatting import duration, percent
from perfd.model import GpuColumn
from perfd.thresholds import THRESHOLDS

_SLOWER_CLOCK = 0.95
"""Of the peers' median clock; above it the clock is not evidence. Chosen."""

_MORE_WORK = 0.5
"""Of the added time, that a GPU computes for longer where it has more work. Chosen."""
_SAME_CHANGE_STEPS = 4
"""Steps between which GPUs and collectives see one change: each needs some steps to see it. Chosen."""


def one_rank_loads_slowly(data: DataLoading) -> bool:
    """Whether the slowest rank loads data for a good part of a step and the fastest does not."""
    return (
        data.share_ratio is not None
        and data.least_ratio is not None
        and (data.share_ratio - data.least_ratio >= THRESHOLDS.data_loading_spread_ratio)
    )


def judge_straggler(facts: JobEvidence) -> Finding | None:
    """The rank that the others wait for, by timers of each rank or by GPM; None without one."""
    others = (*facts.stragglers_by_timers, *facts.stragglers_by_activity)
    arrivals = late(
        facts.nccl.ranks,
        {straggler.rank for straggler in others},
        steps_known=facts.step_time.median is not None,
    )
    if arrivals is not None:
        return _by_arrival(facts, arrivals, arrivals.rank) if arrivals.rank else _together(facts, arrivals)
    if facts.nccl.stalling is not None:
        return _by_stalls(facts, facts.nccl.stalling)
    slow, reading = facts.nccl.slow_since, facts.reading
    if slow is not None and (reading or not _open_who(facts, slow)):
        may_wait = reading is not None and reading.own_work is None
        return _of_reader(facts, slow, reading) if reading and may_wait else _by_own_history(facts, slow)
    if facts.stragglers_by_timers:
        return _by_timers(facts, facts.stragglers_by_timers[0])
    for straggler in facts.stragglers_by_activity:
        finding = _by_activity(facts, straggler)
        if finding is not None:
            return finding
    return None


def judge_unplaced(facts: JobEvidence, *, straggler: Finding | None) -> Finding | None:
    """Steps that became longer while one rank does not wait, where nothing says that it is slow itself."""
    slow = facts.nccl.slow_since
    if straggler is not None or slow is None or facts.reading is not None or not _open_who(facts, slow):
        return None
    return Finding(
        kind=Kind.UNKNOWN,
        confidence=0.0,
        ranks=(slow.rank,),
        evidence=[
            *_since(facts, slow, "As fast as before, the job"),
            f"{_without_peers(slow)}, its GPU does not show that it is slow, and host threads are not seen.",
            "Slow data loading on all ranks may look the same.",
        ],
        advice=advice.GPUS_OF_ALL_RANKS,
        gain_ratio=slow.gain_ratio,
        step_s=slow.since_s,
    )


def _open_who(facts: JobEvidence, slow: SlowRank) -> bool:
    """Whether that rank may be last by chance: its peers are unknown, and neither hosts nor GPUs are seen."""
    return not (slow.role or facts.hosts_seen or _by_its_gpu(slow, facts.longer_steps))


def _by_its_gpu(slow: SlowRank, longer: LongerSteps | None) -> bool:
    """Whether GPUs show a rank of unknown role to be slow: its own has more work, or idles alone.

    Loaders or hosts that are slow on all ranks leave several GPUs idle, and one rank last by chance.
    """
    if longer is None or abs(longer.since_step - slow.since_step) > _SAME_CHANGE_STEPS:
        return False
    own = longer.ranks == slow.rank
    if (longer.computing_ratio[own] >= _MORE_WORK).any():
        return True
    idles = (longer.running_ratio[own] <= THRESHOLDS.late_hosts_idle_ratio).any()
    waiting = longer.running_ratio[~own] >= THRESHOLDS.late_hosts_waiting_ratio
    return bool(idles and len(waiting) and waiting.all())


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
    own = _own_kernels(facts, slow)
    evidence = [
        arrival,
        f"As fast as its peers, it would save {percent(arrivals.gain_ratio)} of the step{own}.",
        *_over(slow),
        *_of_those(arrivals, slow),
        *_stalls(facts, slow.rank),
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


def _own_kernels(facts: JobEvidence, slow: NcclRank) -> str:
    """Communication of the rank beside that of its peers: the mean over ranks shows neither."""
    if slow.busy_ratio is None:
        return ""
    peers = [one.busy_ratio for one in facts.nccl.ranks if one.rank != slow.rank]
    known = [ratio for ratio in peers if ratio is not None]
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


def _by_own_history(facts: JobEvidence, slow: SlowRank) -> Finding:
    return _one_rank(
        slow.rank,
        confidence=0.6,
        evidence=[
            *_since(facts, slow, f"As fast as before, rank {slow.rank}"),
            f"{_without_peers(slow)}: it is compared with its own earlier steps.",
            *_own_work(facts.reading),
        ],
        gain_ratio=slow.gain_ratio,
        step_s=slow.since_s,
    )


def _without_peers(slow: SlowRank) -> str:
    return f"No other rank has its role ({slow.role})" if slow.role else "Its peers are unknown"


def _since(facts: JobEvidence, slow: SlowRank, without: str) -> list[str]:
    before = duration(slow.before_s)
    return [
        f"Steps take {duration(slow.since_s)} since step {slow.since_step}, {before} before.",
        f"{without} would save {percent(slow.gain_ratio)} of the step.",
        f"All other ranks wait that much longer, and rank {slow.rank} does not ({facts.nccl.source}).",
    ]


def _own_work(reading: ReadingRank | None) -> list[str]:
    """Why the rank that reads the data is late by itself."""
    if reading is None or reading.own_work is None:
        return []
    if reading.own_work is OwnWork.GPU:
        return ["It reads the data for all ranks, but its GPU computes for longer (NVML)."]
    working = "the threads that launch its work do not sleep (kernel)"
    return [f"{reading.loader_workers} workers read the data for all ranks, and {working}."]


def _of_reader(facts: JobEvidence, slow: SlowRank, reading: ReadingRank) -> Finding | None:
    """The role of a rank that may wait for data; None where timers show the input."""
    if facts.data.reading_tensor_rank is not None:
        return None
    evidence = _since(facts, slow, "As fast as before, the job")
    busy, asleep = reading.loader_busy_ratio, reading.asleep_ratio
    if asleep is not None:
        evidence.append(
            f"Threads that launch its work sleep {percent(asleep)} of the time (kernel): its host waits for"
            " something."
        )
    loading = asleep is not None and busy is not None and busy >= THRESHOLDS.loader_workers_busy_ratio
    if loading:
        evidence.append(f"Its {reading.loader_workers} loader workers are busy {percent(busy or 0)} of it.")
    return _reader_role(
        reading.rank, evidence, since=slow, kind=Kind.DATA_LOADING if loading else Kind.LATE_HOSTS
    )


def _reader_role(rank: int, evidence: list[str], *, since: SlowRank | StallingRank, kind: Kind) -> Finding:
    """The role of the one rank that reads the data, which nothing shows to be slow itself."""
    by_design = f"Rank {rank} reads the data for all ranks, by design, and has no peer to compare it with"
    loading = kind is Kind.DATA_LOADING
    unknown = "." if loading else ": slow input shows so, and so does other work of its host."
    return Finding(
        kind=kind,
        confidence=0.8 if loading else 0.6,
        culprits=(Culprit(kind="tensor rank", id=0),),
        ranks=(rank,),
        evidence=[*evidence, by_design + unknown],
        advice=advice.SLOW_INPUT if loading else advice.LATE_HOSTS,
        gain_ratio=since.gain_ratio,
        step_s=since.since_s if isinstance(since, SlowRank) else since.step_s,
        longer_for_s=since.longer_for_s,
        since_step=since.since_step if isinstance(since, SlowRank) else None,
    )


def _by_stalls(facts: JobEvidence, stalling: StallingRank) -> Finding:
    evidence = [
        *_stalls(facts, stalling.rank),
        f"Without the stalls the job would save {percent(stalling.gain_ratio)} of its time.",
        f"All other ranks wait in these, {stalling.stalls} times so far ({facts.nccl.source}).",
    ]
    if stalling.rank == facts.only_reader:
        return _reader_role(stalling.rank, evidence, since=stalling, kind=Kind.LATE_HOSTS)
    found = _one_rank(
        stalling.rank,
        confidence=0.8,
        evidence=evidence,
        gain_ratio=stalling.gain_ratio,
        step_s=stalling.step_s,
    )
    return replace(found, advice=advice.PERIODIC_STALL)


def _stalls(facts: JobEvidence, rank: int) -> list[str]:
    """Evidence that a rank stalls at intervals, if it does."""
    seen = facts.nccl.stalling
    if seen is None or seen.rank != rank:
        return []
    stalled, usual = duration(seen.stalled_s), duration(seen.usual_s)
    return [f"Every {seen.period_steps} steps, one takes {stalled} instead of {usual}."]


def _one_rank(
    rank: int, *, confidence: float, evidence: list[str], gain_ratio: float | None, step_s: float
) -> Finding:
    """That one rank is late, by what is known of it alone."""
    return Finding(
        kind=Kind.STRAGGLER,
        confidence=confidence,
        culprits=(Culprit(kind="rank", id=rank),),
        evidence=evidence,
        advice=advice.late_rank(rank),
        gain_ratio=gain_ratio,
        step_s=step_s,
    )


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
