"""Whether the job waits for its input."""

from __future__ import annotations

from enum import Enum, auto

from perfd.analysis.diagnosis.imbalance_findings import one_rank_loads_slowly
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Culprit, Finding, Kind, advice
from perfd.analysis.steps import DataLoading, SleepingHosts
from perfd.analysis.stragglers import Pattern, Straggler
from perfd.formatting import duration, percent
from perfd.thresholds import THRESHOLDS

_ALIKE = 0.05
"""GPUs that differ by less do alike: their samples are no more exact."""
_MOST_SHOWN = 8
"""Ranks in a sentence."""


class _Cause(Enum):
    """What keeps the one rank whose timer of the input is long."""

    INPUT = auto()
    GPU = auto()
    UNDECIDED = auto()
    """GPUs have been seen in too few steps."""
    UNKNOWN = auto()


def judge_data(facts: JobEvidence, *, named: bool = False) -> Finding | None:
    """Time in the timer of the input; None when it is small, or work on the GPU of a slow rank.

    `named` is whether a slow rank is named already.
    """
    data = facts.data
    if data.share_ratio is None or data.share_ratio < THRESHOLDS.data_loading_ratio:
        return None
    if _meanwhile(facts):
        return None
    if not one_rank_loads_slowly(data):
        return _slow_input(data, confidence=0.8)
    cause = _cause(facts)
    if cause is _Cause.INPUT:
        return _slow_input(
            data, confidence=0.6 if data.slow_rank is None else 0.8, idle_ratio=facts.idle_ratio
        )
    if named:
        return None
    return _slow_gpu(data) if cause is _Cause.GPU else _open(data, cause)


def waits_for_gpu_work(facts: JobEvidence) -> bool:
    """Whether the timer of the input is long on one rank, whose host waits in it for work of its GPU."""
    busy = any(one.pattern is Pattern.BUSY_LONGER for one in _meanwhile(facts))
    return one_rank_loads_slowly(facts.data) and (busy or _cause(facts) is _Cause.GPU)


def _meanwhile(facts: JobEvidence) -> list[Straggler]:
    """Ranks whose GPUs were unlike their peers' for at least half of that time."""
    least = (facts.data.share_ratio or 0.0) / 2
    return [straggler for straggler in facts.stragglers_by_activity if straggler.wait_ratio >= least]


def judge_sleeping_hosts(facts: JobEvidence) -> Finding | None:
    """Hosts of all ranks that sleep while their GPUs have nothing to do; None where timers show the input.

    They wait for data if other processes load it for them. Without those they may read it themselves, or
    wait for anything else.
    """
    hosts = facts.sleeping
    if hosts is None or (facts.data.share_ratio or 0.0) >= THRESHOLDS.data_loading_ratio:
        return None
    loaders, sure = _loaders_in_words(hosts)
    loaded = hosts.loader_workers != 0
    return Finding(
        kind=Kind.DATA_LOADING if loaded else Kind.LATE_HOSTS,
        confidence=sure,
        evidence=[*_sleep_in_words(hosts), *loaders],
        advice=advice.SLOW_INPUT if loaded else advice.SLEEPING_HOSTS,
        gain_ratio=hosts.gain_ratio,
        step_s=hosts.since_s or hosts.step_s,
        longer_for_s=hosts.longer_for_s,
        since_step=hosts.since_step,
    )


def _sleep_in_words(hosts: SleepingHosts) -> list[str]:
    """How long hosts sleep, since when, and what their GPUs do meanwhile."""
    sleep = (
        f"Threads that launch the work sleep {percent(hosts.asleep_ratio)} of the time on every rank"
        " (kernel): their hosts wait for something, and neither compute nor wait for a CPU."
    )
    evidence = [sleep]
    if hosts.since_step is not None:
        evidence.append(
            f"Steps take {duration(hosts.since_s)} since step {hosts.since_step} and took"
            f" {duration(hosts.before_s)} before."
        )
    if hosts.active_ratios is not None:
        before, now = map(percent, hosts.active_ratios)
        evidence.append(
            f"SMs have been active {now} of the last {duration(hosts.longer_for_s)}, and {before} of the time"
            " before (GPM)."
        )
    if hosts.idle_ratio is not None and hosts.idle_ratio >= THRESHOLDS.idle_ratio:
        evidence.append(f"GPUs of all ranks run no kernel in {percent(hosts.idle_ratio)} and more (NVML).")
    elif hosts.idlest_ratio is not None:
        evidence.append(
            f"The GPU that idles most runs no kernel in {percent(hosts.idlest_ratio)} of the time (NVML);"
            " whichever rank gets its data first waits for the others in NCCL."
        )
    if hosts.waiting_ranks:
        shown = ", ".join(map(str, hosts.waiting_ranks[:_MOST_SHOWN]))
        evidence.append(
            f"GPUs of ranks {shown} wait in NCCL (GPM) for a later rank while their own hosts sleep, too."
            " Before, when these waited for busy GPUs, they did not sleep."
        )
    if hosts.lead_lost:
        evidence.append("Hosts are less far ahead of their GPUs than before (NCCL).")
    if hosts.at_begin:
        evidence.append("That time lies between a step's last reduction and the next one's first (NCCL).")
    return evidence


def _loaders_in_words(hosts: SleepingHosts) -> tuple[list[str], float]:
    """What loader workers do meanwhile, and how sure it is from that that hosts wait for data, 0 to 1."""
    busy, workers = hosts.loader_busy_ratio, hosts.loader_workers
    if workers == 0:
        unseen = (
            "No loader workers of any rank are seen: hosts may wait for data that they read themselves, for a"
            " lock, or for another process."
        )
        return [unseen], 0.6
    if busy is not None and busy >= THRESHOLDS.loader_workers_busy_ratio:
        return [f"The {workers} loader workers of each rank are busy {percent(busy)} of the time."], 0.8
    evidence = []
    if busy is not None and busy <= THRESHOLDS.loader_workers_asleep_ratio:
        evidence.append(
            f"The {workers} loader workers of each rank sleep, too: storage or a network keeps them, or"
            " what comes after them."
        )
    return [*evidence, "A lock or a barrier between hosts would look the same."], 0.6


def _cause(facts: JobEvidence) -> _Cause:
    """What the GPUs did meanwhile.

    The host waits in this timer for work of its GPU, too: copies of the batch queue behind it. While a rank
    waits for its input alone, its GPU runs nothing.
    """
    data = facts.data
    if facts.activity_undecided:
        return _Cause.UNDECIDED
    if not data.waits_for_gpu:
        return _Cause.INPUT
    if facts.idle_ratio is not None:
        return _Cause.GPU if facts.idle_ratio < _longer(data) / 2 else _Cause.INPUT
    if data.slow_rank is not None:
        return _Cause.INPUT
    if facts.busier_ratio is not None and facts.busier_ratio < _ALIKE:
        return _Cause.INPUT
    return _Cause.UNKNOWN


def _slow_input(data: DataLoading, *, confidence: float, idle_ratio: float | None = None) -> Finding:
    idle = [] if idle_ratio is None else [f"One GPU idles {percent(idle_ratio)} more than its peers (NVML)."]
    return Finding(
        kind=Kind.DATA_LOADING,
        confidence=confidence,
        culprits=_culprits(data),
        evidence=[*_evidence(data, cause=_Cause.INPUT), *idle],
        advice=advice.SLOW_INPUT,
        gain_ratio=data.share_ratio,
    )


def _slow_gpu(data: DataLoading) -> Finding:
    return Finding(
        kind=Kind.STRAGGLER,
        confidence=0.4 if data.slow_rank is None else 0.6,
        culprits=_culprits(data),
        evidence=[
            *_evidence(data, cause=_Cause.GPU),
            "No GPU idles meanwhile (NVML), so that rank waits for work on its GPU, not for its input.",
        ],
        advice=advice.busy_gpu(data.slow_rank),
        gain_ratio=_longer(data),
    )


def _open(data: DataLoading, cause: _Cause) -> Finding:
    undecided = cause is _Cause.UNDECIDED
    missing = (
        "GPUs were seen in too few steps to decide."
        if undecided
        else "what the GPU of that rank does meanwhile is unknown."
    )
    return Finding(
        kind=Kind.UNKNOWN,
        confidence=0.0,
        culprits=_culprits(data),
        evidence=[*_evidence(data, cause=cause), f"Slow input shows so, and so does a slow GPU; {missing}"],
        advice=advice.MORE_STEPS if undecided else advice.GPUS_OF_ALL_RANKS,
        gain_ratio=data.share_ratio,
    )


def _longer(data: DataLoading) -> float:
    """What the slowest rank's timer holds more than the fastest one's, by step time."""
    return (data.share_ratio or 0.0) - (data.least_ratio or 0.0)


def _culprits(data: DataLoading) -> tuple[Culprit, ...]:
    if data.reading_tensor_rank is not None:
        return (Culprit(kind="tensor rank", id=data.reading_tensor_rank),)
    return () if data.slow_rank is None else (Culprit(kind="rank", id=data.slow_rank),)


def _evidence(data: DataLoading, *, cause: _Cause) -> list[str]:
    """What the timer says; `cause` is what is known of why."""
    long = "Loading data takes" if cause is _Cause.INPUT else "The timer of the input holds"
    evidence = [f"{long} {percent(data.share_ratio or 0)} of a step on the slowest rank ({data.source})."]
    if data.reading_tensor_rank is not None:
        others = percent(data.least_ratio or 0.0)
        reader = f"Tensor rank {data.reading_tensor_rank} reads the data for its group"
        return [*evidence, f"{reader}, by design, and the others wait for it: elsewhere it takes {others}."]
    if one_rank_loads_slowly(data) and data.least_ratio is not None:
        slow = "one rank's input is slow" if cause is _Cause.INPUT else "one rank is slow"
        who = (
            " the others wait; the log does not say which rank."
            if data.slow_rank is None
            else f" the others wait for it: rank {data.slow_rank}."
        )
        evidence.append(f"It takes only {percent(data.least_ratio)} on the fastest one, so {slow} and{who}")
    elif data.least_ratio is not None and THRESHOLDS.data_loading_ratio <= data.least_ratio < (
        data.share_ratio or 0.0
    ):
        evidence.append(
            f"It takes {percent(data.least_ratio or 0)} on the fastest one: all ranks wait for input."
        )
    return evidence
