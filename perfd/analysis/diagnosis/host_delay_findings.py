"""Why hosts are late: they wait for a CPU, a quota, storage or memory, stall periodically, or launch late."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfd.analysis.collectives import StallingRanks
from perfd.analysis.data.job_data import Bools, Ints
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Culprit, Finding, Kind, advice
from perfd.analysis.steps import IdleSince, LongerSteps, mean_over_gpus
from perfd.analysis.stragglers import HostContention, PeriodicStall
from perfd.formatting import duration, percent, rank_names
from perfd.model import RankColumn
from perfd.thresholds import THRESHOLDS

_SHOWN = 8
"""Ranks that one finding names."""
_BUSY_CPUS = 0.9
"""CPUs that the threads of a rank want, per CPU that it may use; from here on they have none to spare.
Chosen."""
_FEW_LINES = 6
"""With fewer lines since hosts are late, the next one often shows that it is one rank. Chosen."""
_MANY_LINES = 30
"""From so many on, hosts that cost little are more than noise. Chosen."""
_UNKNOWN_WORK = "Data loading does this, and so does any other work of hosts: nothing seen shows which."
_REMEDIES: Mapping[RankColumn, str] = {
    RankColumn.CPU_THROTTLED: advice.HIGHER_CPU_LIMIT,
    RankColumn.CPU_WAIT: advice.MORE_CPUS,
    RankColumn.IO_WAIT: advice.FASTER_STORAGE,
    RankColumn.MAJOR_FAULTS: advice.FREE_MEMORY,
}
_WAITS_FOR: Mapping[RankColumn, str] = {
    RankColumn.CPU_THROTTLED: "threads are stopped in {value} of the periods of their CPU quota (cgroup)",
    RankColumn.CPU_WAIT: "threads wait {value} of the time for a CPU (kernel)",
    RankColumn.IO_WAIT: "threads wait {value} of the time for storage or swap (kernel)",
    RankColumn.MAJOR_FAULTS: "threads read {value} memory pages per second from storage (kernel)",
}


def judge_contention(facts: JobEvidence, *, straggler: Finding | None) -> Finding | None:
    """Why hosts are late; None where nothing says that they wait for something.

    What it costs is at most the time that GPUs of these ranks run no kernel, or what a `straggler` costs that
    is one of them: a host may wait while its GPU has enough to do.
    """
    if not facts.contention:
        return None
    first = facts.contention[0]
    ranks = () if first.of_all else tuple(first.ranks[:_SHOWN])
    if straggler is not None and not set(straggler.concerned_ranks) & set(first.ranks):
        straggler = None
    gain = straggler.gain_ratio if straggler else _gain(facts, first)
    if gain is not None and gain < THRESHOLDS.host_contention_cost_ratio:
        return None
    return Finding(
        kind=Kind.HOST_CONTENTION,
        confidence=0.6 if gain is None else 0.8,
        culprits=tuple(Culprit(kind="rank", id=rank) for rank in ranks),
        evidence=[_sentence(one) for one in facts.contention] + _beside(first),
        advice=_REMEDIES[first.column],
        gain_ratio=gain,
        step_s=straggler.step_s if straggler else None,
    )


def judge_late_hosts(
    facts: JobEvidence, *, straggler: Finding | None, sleeping: Finding | None = None
) -> Finding | None:
    """Steps that became longer without more work for any GPU, where some idle for it; None with a straggler.

    What GPUs do shows that hosts are late, and not what these do; None too where `sleeping` says more of it.
    """
    longer = facts.longer_steps
    if sleeping is not None and sleeping.kind is Kind.LATE_HOSTS:
        return None
    if straggler is None and longer is None and sleeping is None and facts.idle_since is not None:
        return _idle_since(facts.idle_since, _read(facts))
    if straggler is not None or longer is None or not (longer.ranks >= 0).all():
        return None
    computing, running = longer.computing_ratio, longer.running_ratio
    waiting = running >= THRESHOLDS.late_hosts_waiting_ratio
    idle = running <= THRESHOLDS.late_hosts_idle_ratio
    late = idle.any() if waiting.any() else running.mean() <= THRESHOLDS.late_hosts_idle_ratio
    # All GPUs have less in the added time where they have higher clocks, because they idle more.
    less_work = computing < -THRESHOLDS.late_hosts_compute_ratio
    all_wait = waiting & bool(longer.awaited_ranks)
    most = np.where(
        all_wait, THRESHOLDS.late_hosts_waiting_compute_ratio, THRESHOLDS.late_hosts_compute_ratio
    )
    other_work = (computing > most).any() or (less_work.any() and not less_work.all())
    if not late or other_work or np.isnan([computing, running]).any():
        return None
    now, before = duration(longer.since_s), duration(longer.before_s)
    took = (
        f"Steps take {now} since step {longer.since_step} and took {before} before, without more work for any"
        " GPU (NVML: SMs are active for as long as before)."
    )
    who = (
        f"In that time GPUs of {_ranks(longer.ranks, idle)} run no kernel, while those of"
        f" {_ranks(longer.ranks, waiting)} wait in one of NCCL (NVML)."
        if waiting.any()
        else f"{_read(facts)} run a kernel in only {percent(max(0.0, float(running.mean())))} of the added"
        " time (NVML): their hosts are late together."
    )
    awaited = _awaited(facts, longer)
    if not awaited and longer.lines < _MANY_LINES and longer.gain_ratio < THRESHOLDS.late_hosts_gain_ratio:
        return None
    readers = _readers(facts, longer.ranks[idle]) if waiting.any() else []
    return Finding(
        kind=Kind.STRAGGLER if awaited else Kind.LATE_HOSTS,
        confidence=0.6,
        culprits=tuple(Culprit(kind="rank", id=rank) for rank in awaited) or _reading_role(facts, longer),
        ranks=() if awaited else _late_ranks(facts, longer),
        evidence=[took, who, *readers, *([] if awaited else [_UNKNOWN_WORK])],
        advice=advice.slow_host(*awaited) if awaited else advice.LATE_HOSTS,
        gain_ratio=longer.gain_ratio,
        step_s=longer.since_s,
        longer_for_s=longer.longer_for_s,
        since_step=longer.since_step,
        tentative=not awaited and longer.lines < _FEW_LINES,
    )


def _awaited(facts: JobEvidence, longer: LongerSteps) -> tuple[int, ...]:
    """The ranks that GPUs show all others to wait for; none if one of them may read data for others.

    Those are the first ranks of tensor groups, without these the first and the last stage, and of a job of
    unknown layout the first and the last rank. Where each rank reads its own data, slow input of all leaves
    several idle, and others wait by chance: there one rank is named at most.
    """
    found, layout, ranks = longer.awaited_ranks, facts.parallel, len(longer.ranks)
    if any(rank == facts.only_reader or rank in facts.readers for rank in found):
        return ()
    tensor = layout.tp or 1
    if tensor > 1:
        return () if any(rank % tensor == 0 for rank in found) else found
    stages = layout.pp or ranks
    at_either_end = stages > 1 and any(rank * stages // ranks in {0, stages - 1} for rank in found)
    each_reads = len(found) > 1 and (layout.pp or 1) == 1
    return () if at_either_end or each_reads else found


def _reading_role(facts: JobEvidence, longer: LongerSteps) -> tuple[Culprit, ...]:
    """The role of the one rank that reads the data for all, if it is late alone."""
    late = longer.idle_while_others_wait
    return (Culprit(kind="tensor rank", id=0),) if late and late == (facts.only_reader,) else ()


def _late_ranks(facts: JobEvidence, longer: LongerSteps) -> tuple[int, ...]:
    """Ranks that are late alone. Of two, where both cannot be: one reads the data, or each is a stage."""
    late, stages = longer.idle_while_others_wait, facts.parallel.pp or 1
    return late if late == (facts.only_reader,) or stages == len(longer.ranks) else longer.awaited_ranks


def _read(facts: JobEvidence) -> str:
    return "The GPUs that are read" if facts.silent_gpu_ranks else "GPUs of all ranks"


def _idle_since(idle: IdleSince, which: str) -> Finding:
    before, now = map(percent, idle.active_ratios)
    active = f"For {duration(idle.lasts_s)}, SMs are active {now} of the time, and were {before} before (GPM)"
    rest = f"{which} run no kernel in {percent(idle.idle_ratio)} of it and more (NVML)"
    return Finding(
        kind=Kind.LATE_HOSTS,
        confidence=0.4,
        evidence=[
            f"{active}; how long steps take is not known.",
            f"{rest}: their hosts are late together.",
            _UNKNOWN_WORK,
        ],
        advice=advice.LATE_HOSTS,
        gain_ratio=idle.gain_ratio,
        longer_for_s=idle.lasts_s,
    )


def judge_stalls(facts: JobEvidence, *, straggler: Finding | None) -> Finding | None:
    """Steps that are longer at regular intervals, with the rank that stalls if NCCL shows it.

    None if that rank is already the straggler, with its stalls as evidence.
    """
    stall, seen = facts.stall, facts.nccl.stalling
    if stall is None or _is_by_stalls(seen, stall, straggler):
        return None
    seconds = duration(stall.period_s)
    often = (
        f"Every {seconds}"
        if stall.period_steps is None
        else f"Every {stall.period_steps} steps, which is every {seconds},"
    )
    longer = f"a step takes {duration(stall.stall_s)} longer than the usual {duration(stall.usual_s)}"
    seen_times = f"{stall.stalls} times so far, {percent(stall.cost_ratio)} of the time"
    evidence = [f"{often} {longer}: {seen_times} ({facts.step_time_source})."]
    if stall.rank is not None:
        evidence.append(f"Its peers wait for rank {stall.rank} meanwhile ({facts.nccl.source}).")
    return Finding(
        kind=Kind.PERIODIC_STALL,
        confidence=0.8,
        culprits=_stalling(facts, stall.rank),
        ranks=(stall.rank,) if stall.rank is not None and stall.rank == facts.only_reader else (),
        evidence=evidence,
        advice=advice.PERIODIC_STALL,
        gain_ratio=stall.cost_ratio,
        step_s=stall.usual_s / (1 - stall.cost_ratio),
    )


def _is_by_stalls(seen: StallingRanks | None, stall: PeriodicStall, straggler: Finding | None) -> bool:
    """Whether the straggler is who stalls: of several that do, none is the one that others wait for."""
    if seen is None or straggler is None or set(seen.ranks) != set(straggler.concerned_ranks):
        return False
    return stall.rank in seen.ranks or (stall.rank is None and len(seen.ranks) > 1)


def judge_tensor_launches(facts: JobEvidence, *, straggler: Finding | None) -> Finding | None:
    """Tensor groups that wait for each other's launches in turn; None with a rank that is always late.

    Their ranks do the same work and meet in every layer, so that whoever launches late keeps the others in
    NCCL: what one GPU idles and its peer waits is one loss.
    """
    idle = 1 - mean_over_gpus(facts.activity, facts.activity.kernel_metric)
    usual = facts.activity.usual(facts.activity.metrics.get(facts.activity.kernel_metric))
    waits = [one.wait_ratio for one in facts.communication.dimensions if one.group == "tp"]
    if straggler is not None or (facts.parallel.tp or 1) < 2 or not waits or waits[0] is None:
        return None
    if not usual or waits[0] < THRESHOLDS.tensor_wait_ratio:
        return None
    # While one host of a group is late its GPU idles, and all others wait: the larger the group, the less.
    least_idle = THRESHOLDS.idle_ratio * 2 / (facts.parallel.tp or 1)
    lost = idle + waits[0]
    if not (idle >= least_idle and lost >= THRESHOLDS.idle_ratio + THRESHOLDS.tensor_wait_ratio):
        return None
    waiting = (
        f"They wait another {percent(waits[0])} in collectives of tensor groups, whose ranks have the same"
        f" work ({facts.nccl.source}): the hosts launch late in turn, and no rank is to blame."
    )
    return Finding(
        kind=Kind.LAUNCH_BOUND,
        confidence=0.6,
        evidence=(f"GPUs run no kernel at all in {percent(idle)} of {facts.activity.when} (NVML).", waiting),
        advice=advice.LAUNCH_LESS,
        gain_ratio=lost,
    )


def _ranks(ranks: Ints, chosen: Bools) -> str:
    return rank_names(sorted(ranks[chosen].tolist()))


def _readers(facts: JobEvidence, idle: Ints) -> list[str]:
    """Of tensor groups, where their first ranks idle: by design these read the data for all."""
    size = facts.parallel.tp or 1
    if size < 2 or (idle % size).any():
        return []
    return ["They are the first of their tensor groups, which read the data for them."]


def _stalling(facts: JobEvidence, rank: int | None) -> tuple[Culprit, ...]:
    """The rank, or its role where it reads the data for all others: it may wait for these."""
    if rank is None:
        return ()
    reads = rank == facts.only_reader
    return (Culprit(kind="tensor rank", id=0) if reads else Culprit(kind="rank", id=rank),)


def _gain(facts: JobEvidence, first: HostContention) -> float | None:
    running = facts.activity.of_gpus(facts.activity.kernel_metric)
    idle = [
        1 - float(ratio)
        for key, ratio in zip(facts.activity.gpus, running, strict=True)
        if key.rank in first.ranks and np.isfinite(ratio)
    ]
    if not idle:
        return None
    return min(max(idle), first.value) if first.column is not RankColumn.MAJOR_FAULTS else max(idle)


def _sentence(one: HostContention) -> str:
    of = "most ranks" if one.of_all else rank_names(one.ranks[:_SHOWN])
    others = "" if one.others is None else f"; those of other ranks {_value(one.column, one.others)}"
    what = _WAITS_FOR[one.column].format(value=_value(one.column, one.value))
    hosts = f"The hosts of {of} are late: their" if _several(one) else f"The host of {of} is late: its"
    return f"{hosts} {what}{others}."


def _several(one: HostContention) -> bool:
    return one.of_all or len(one.ranks[:_SHOWN]) > 1


def _beside(one: HostContention) -> list[str]:
    found = []
    several = _several(one)
    their = "Their" if several else "Its"
    demand = one.beside.get(RankColumn.CPU_DEMAND)
    if demand is not None and demand >= _BUSY_CPUS:
        it = "they" if several else "it"
        found.append(f"{their} threads want {demand:.1f} times the CPUs that {it} may use (kernel).")
    others = one.beside.get(RankColumn.OTHERS_CPU)
    if others is not None and others >= THRESHOLDS.host_cpu_wait_ratio:
        found.append(f"Processes other than ranks use {percent(others)} of these CPUs (kernel).")
    remote = one.beside.get(RankColumn.REMOTE_NUMA)
    if remote is not None and remote >= THRESHOLDS.host_remote_numa_ratio:
        found.append(f"{their} threads run {percent(remote)} of their time far from their GPU (NUMA).")
    return found


def _value(column: RankColumn, value: float) -> str:
    return f"{value:,.0f}" if column is RankColumn.MAJOR_FAULTS else percent(value)
