"""Findings about a rank by its own past: it became slow, or stalls at intervals, while all others wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfd.analysis.collectives import SlowRank, StallingRanks
from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Culprit, Finding, Kind, advice
from perfd.analysis.layout import PAIR_OPERATION
from perfd.analysis.stragglers import OwnWork, ReadingRank
from perfd.formatting import duration, percent, rank_names
from perfd.thresholds import THRESHOLDS

_MORE_WORK = 0.5
"""Of the added time, that a GPU computes for longer where it has more work. Chosen."""
_SEEN_WAITING = 0.5
"""Of the added time, that others are seen to wait in NCCL: then that shows whom they wait for. Chosen."""
_SELDOM = 0.02
"""Of the time in NCCL's kernels: with less, steps do not end with them. Chosen."""
_HOSTS_SHOW_S = 2.0
"""After a change readings of hosts show by then what all of them do. Chosen: they are read each second."""
_LEAST_S = 1.5
"""Longer steps that take less time in all may be noise, even if GPUs differ: 13 micro-batches of 0.1 s (H100,
2026-11-26). Chosen."""
_SAME_CHANGE_STEPS = 4
"""Steps between which GPUs and collectives see one change: each needs some steps to see it. Chosen."""


def by_own_past(facts: JobEvidence, slow: SlowRank) -> Finding | None:
    """A rank that became slow, or the role of one that may wait for data; None if timers show the input."""
    reading = facts.reading
    if reading is not None and reading.own_work is None:
        return _of_reader(facts, slow, reading)
    return _one_rank(
        slow.rank,
        confidence=0.6,
        evidence=[
            *_since(facts, slow, f"As fast as before, rank {slow.rank}"),
            _compared(slow),
            *_own_work(facts.reading),
        ],
        gain_ratio=slow.gain_ratio,
        step_s=slow.since_s,
        longer_for_s=slow.longer_for_s,
    )


def working_more(facts: JobEvidence) -> int | None:
    """The rank whose GPU alone has more work since steps became longer, and still has; None without one."""
    longer = facts.longer_steps
    world = facts.parallel.world_size or 0
    if longer is None or world < 2 or sorted(longer.ranks) != list(range(world)):
        return None
    more = longer.computing_ratio >= _MORE_WORK
    as_before = np.abs(longer.computing_ratio) <= THRESHOLDS.late_hosts_compute_ratio
    if more.sum() != 1 or not (more | as_before).all():
        return None
    rank = int(longer.ranks[more][0])
    return rank if rank in facts.computing_more else None


def by_own_gpu(facts: JobEvidence) -> Finding | None:
    """A rank whose GPU alone has more work since steps became longer; None where NCCL shows who waits.

    Of sends and receives in one kernel, as in an all-to-all, NCCL shows no waiting, and of hosts that reduce
    gradients themselves nothing at all.
    """
    longer, rank = facts.longer_steps, working_more(facts)
    if longer is None or rank is None or any(one.gain_ratio is not None for one in facts.nccl.ranks):
        return None
    pairs = any(kind.operation == PAIR_OPERATION for kind in facts.nccl.kinds)
    if not pairs and max((one.busy_ratio or 0.0 for one in facts.nccl.ranks), default=0.0) >= _SELDOM:
        return None
    waiting = [one.wait_ratio or 0.0 for one in facts.nccl.ranks if one.rank != rank]
    if max(waiting, default=0.0) >= _SEEN_WAITING * longer.gain_ratio:
        return None
    computing = min(1.0, float(longer.computing_ratio[longer.ranks == rank][0]))
    now = duration(longer.since_s)
    return _one_rank(
        rank,
        confidence=0.6,
        evidence=[
            f"Steps take {now} since step {longer.since_step}, {duration(longer.before_s)} before.",
            f"The GPU of rank {rank} computes in {percent(computing)} of the added time (GPM).",
            "Those of all others have no more work than before (GPM).",
            *(["If experts are spread over ranks, its own may as well get more tokens."] if pairs else []),
        ],
        gain_ratio=longer.gain_ratio,
        step_s=longer.since_s,
        longer_for_s=longer.longer_for_s,
    )


def may_be_last(facts: JobEvidence, slow: SlowRank) -> bool:
    """Whether that rank may only be the last of ranks that are all late, since nothing else shows it slow.

    Its peers are unknown, and neither hosts nor GPUs are seen. Or it has peers, and became late a moment ago,
    so that hosts are not read yet, or one lag of it is waited for again and again. Or a moment ago, and rows
    may be of micro-batches.
    """
    if (slow.counted_twice or facts.step_doubt is not None) and slow.longer_for_s < _LEAST_S:
        return True
    if facts.reading is not None or _by_its_gpu(facts, slow):
        return False
    if slow.has_peers and (slow.counted_twice or slow.longer_for_s < _HOSTS_SHOW_S):
        return True
    return not (slow.role or (facts.hosts_seen and not facts.awaits_hosts))


def judge_unplaced(facts: JobEvidence, *, straggler: Finding | None) -> Finding | None:
    """Steps that became longer while one rank does not wait, where nothing says that it is slow itself."""
    slow = facts.nccl.slow_since
    if straggler is not None or slow is None or slow.has_peers or not may_be_last(facts, slow):
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
        since_step=slow.since_step,
    )


def _by_its_gpu(facts: JobEvidence, slow: SlowRank) -> bool:
    """Whether GPUs show that rank to be slow: its own has more work, or idles while all others wait."""
    longer = facts.longer_steps
    if longer is None or abs(longer.since_step - slow.since_step) > _SAME_CHANGE_STEPS:
        return slow.has_peers and facts.computing_more == {slow.rank}
    works_more = (longer.computing_ratio[longer.ranks == slow.rank] >= _MORE_WORK).any()
    return bool(works_more) or longer.awaited_ranks == (slow.rank,)


def by_stalls(facts: JobEvidence, stalling: StallingRanks) -> Finding:
    """Ranks that stall at intervals, their node if it has no other, or the role of one that reads data."""
    ranks = stalling.ranks
    together = [] if len(ranks) == 1 else [f"{rank_names(ranks).capitalize()} do not wait for each other."]
    evidence = [
        *stalls_of(facts, ranks),
        f"Without the stalls the job would save {percent(stalling.gain_ratio)} of its time.",
        f"All other ranks wait in these, {stalling.stalls} times so far ({facts.nccl.source}).",
        *together,
    ]
    if ranks == (facts.only_reader,):
        return _reader_role(ranks[0], evidence, since=stalling, kind=Kind.LATE_HOSTS)
    of_ranks = tuple(Culprit(kind="rank", id=rank) for rank in ranks)
    return Finding(
        kind=Kind.STRAGGLER,
        confidence=0.8,
        culprits=of_ranks if stalling.node is None else (Culprit(kind="node", id=stalling.node),),
        ranks=() if stalling.node is None else ranks,
        evidence=evidence,
        advice=advice.PERIODIC_STALL,
        gain_ratio=stalling.gain_ratio,
        step_s=stalling.step_s,
    )


def stalls_of(facts: JobEvidence, ranks: Sequence[int]) -> list[str]:
    """Evidence that these ranks stall at intervals, if they do."""
    seen = facts.nccl.stalling
    if seen is None or seen.ranks != tuple(ranks):
        return []
    stalled, usual = duration(seen.stalled_s), duration(seen.usual_s)
    return [f"Every {seen.period_steps} steps, one takes {stalled} instead of {usual}."]


def may_read_for_others(facts: JobEvidence, ranks: Sequence[int]) -> bool:
    """Whether slow input may be what makes these late: others get something from them in each step.

    Not where the GPU of one has more work.
    """
    return bool(ranks) and facts.readers.issuperset(ranks) and facts.computing_more.isdisjoint(ranks)


def of_root(found: Finding) -> Finding:
    """What is said of a slow rank, as that of its role."""
    (rank,) = found.concerned_ranks[:1]
    role = (
        f"Rank {rank} hands something to others by broadcast in each step, and the layout is unknown: it may"
        " read the data for them. Slow input shows so, and so does other work of its host."
    )
    return replace(
        found,
        kind=Kind.LATE_HOSTS,
        confidence=min(found.confidence, 0.6),
        culprits=tuple(Culprit(kind="broadcast root", id=rank) for rank in found.concerned_ranks),
        ranks=tuple(found.concerned_ranks),
        evidence=(*found.evidence, role),
        advice=advice.LATE_HOSTS,
    )


def _compared(slow: SlowRank) -> str:
    why = "Steps since then are few" if slow.has_peers else _without_peers(slow)
    return f"{why}: it is compared with its own earlier steps."


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


def _reader_role(rank: int, evidence: list[str], *, since: SlowRank | StallingRanks, kind: Kind) -> Finding:
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


def _one_rank(
    rank: int,
    *,
    confidence: float,
    evidence: list[str],
    gain_ratio: float | None,
    step_s: float,
    longer_for_s: float | None = None,
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
        longer_for_s=longer_for_s,
    )
