"""Ranks that hang, that report nothing, or that are not one job's alone."""

from __future__ import annotations

from collections.abc import Sequence

from perfd.analysis.diagnosis.job_evidence import JobEvidence
from perfd.analysis.findings import Culprit, Finding, Kind, advice
from perfd.analysis.hang import Hang
from perfd.formatting import percent, rank_names
from perfd.thresholds import THRESHOLDS

_MIXED = "Measurements of a rank mix both jobs, so no rank is named."
_SHOWN = 8
"""Ranks that one finding names."""


def judge_hang(facts: JobEvidence) -> Finding | None:
    """A job that hangs, with the rank that did not come if known; None if it moves."""
    hang = facts.hang
    if hang is None:
        return None
    return Finding(
        kind=Kind.HANG,
        confidence=_confidence(hang),
        culprits=tuple(Culprit(kind="rank", id=rank) for rank in hang.culprits[:_SHOWN]),
        evidence=tuple(hang.evidence),
        advice=advice.hanging_ranks(hang.culprits) if hang.culprits else advice.HANG_ANYWHERE,
        gain_ratio=1.0,
    )


def _confidence(hang: Hang) -> float:
    if not hang.sources:
        return 0.4
    if not hang.sure:
        return 0.6
    return 0.9 if hang.sources > 1 else 0.8


def judge_shared_gpus(facts: JobEvidence, *, straggler: Finding | None) -> Finding | None:
    """Another job on the GPUs of this one; None where nothing shows that it costs something.

    Of two jobs on the same GPUs each waits for the other; a `straggler` is slow because its GPU is shared.
    """
    shared = facts.shared
    if shared.doubled and shared.on_same_gpus:
        return Finding(
            kind=Kind.GPU_CONTENTION,
            confidence=0.6,
            evidence=[
                shared.doubled,
                f"They share GPUs, and each waits for the other. {_MIXED}",
            ],
            advice=f"{advice.GPUS_OF_ITS_OWN} {advice.NAMES_OF_THEIR_OWN}",
        )
    ranks = sorted(set(straggler.concerned_ranks) & shared.jobs.keys()) if straggler else []
    if straggler is None or not ranks:
        return None
    return Finding(
        kind=Kind.GPU_CONTENTION,
        confidence=0.8,
        culprits=tuple(Culprit(kind="job", id=job) for job in _beside(facts, ranks)),
        ranks=ranks,
        evidence=[
            f"The GPU of rank {rank} also runs {', '.join(shared.jobs[rank])}." for rank in ranks[:_SHOWN]
        ],
        advice=advice.GPUS_OF_ITS_OWN,
        gain_ratio=straggler.gain_ratio,
        step_s=straggler.step_s,
    )


def _beside(facts: JobEvidence, ranks: Sequence[int]) -> list[str]:
    return sorted({job for rank in ranks for job in facts.shared.jobs[rank]})[:_SHOWN]


def judge_missing(facts: JobEvidence) -> Finding | None:
    """Ranks that report nothing while others do. They are not culprits: what depends on all is not judged."""
    evidence = []
    if facts.shared.doubled and not facts.shared.on_same_gpus:
        evidence += [facts.shared.doubled, _MIXED]
    if facts.nccl.missing_ranks:
        evidence.append(
            f"No NCCL timings came from {rank_names(facts.nccl.missing_ranks)} ({facts.nccl.source}), so"
            " no rank of their stage is named for waiting in collectives."
        )
    if facts.nccl.behind_ranks:
        evidence.append(
            f"Operations of {rank_names(facts.nccl.behind_ranks)} come seconds later than those of others, or"
            f" never ({facts.nccl.source}), so no rank of their stage is named for waiting in collectives."
        )
    if facts.nccl.renewed:
        evidence.append(
            "Communicators were replaced a few seconds ago, so no rank is named as the last one"
            f" ({facts.nccl.source}): that takes ten seconds of operations."
        )
    if facts.nccl.lost_operations and (evidence or facts.nccl.wait_ratio is None):
        # Some lost of many change nothing: the rest is matched all the same.
        evidence.append(
            f"{facts.nccl.lost_operations} NCCL operations were not seen: shares of communication are lower"
            " bounds."
        )
    if facts.nccl.untimed_ranks:
        evidence.append(
            f"{rank_names(facts.nccl.untimed_ranks).capitalize()} reported no times on the GPU although"
            f" others did ({facts.nccl.source}), so shares of time are unknown, and they are not compared."
        )
    if facts.untimed and not facts.wrong_times:
        evidence.append(
            f"No rank reports times on the GPU ({facts.nccl.source}), so shares of time are unknown: NCCL has"
            " them since 2.27, and perfd requests them unless its `gpu_time` is off."
        )
    evidence += [f"{rank_names(ranks).capitalize()}: {said}" for said, ranks in facts.wrong_times.items()]
    if facts.wrong_times and facts.communication.dimensions:
        known = ", ".join(
            f"{one.group or 'others'} {percent(one.share_ratio)}" for one in facts.communication.dimensions
        )
        evidence.append(f"Communication is known of {known} of a step; of the rest it is unknown.")
    if facts.hosts_may_limit and any(_may_cost(one.gain_ratio) for one in facts.nccl.ranks):
        evidence.append(
            "No GPU is read (NVML), and hosts of all ranks never sleep (kernel): they may limit the job, so a"
            " rank that costs less than a quarter of a step is not named."
        )
    if facts.silent_gpu_ranks:
        evidence.append(
            f"No agent reads the GPUs of {rank_names(facts.silent_gpu_ranks)} (NVML), so no rank is named by"
            " the activity of GPUs."
        )
    if not evidence:
        return None
    return Finding(kind=Kind.MISSING_TELEMETRY, confidence=0.9, evidence=evidence, advice=_advice(facts))


def _may_cost(gain_ratio: float | None) -> bool:
    return (gain_ratio or 0.0) >= THRESHOLDS.straggler_certain_wait_ratio


def _advice(facts: JobEvidence) -> str:
    """What each kind of silence needs."""
    texts = [advice.NAMES_OF_THEIR_OWN] if facts.shared.doubled else []
    if facts.nccl.behind_ranks:
        texts.append(advice.LATE_AGENTS)
    if facts.nccl.missing_ranks or facts.silent_gpu_ranks or facts.hosts_may_limit:
        texts.append(advice.AGENT_ON_EVERY_NODE)
    if facts.wrong_times:
        texts.append(advice.CAPTURE)
    elif facts.nccl.untimed_ranks or facts.untimed:
        texts.append(advice.ONE_NCCL)
    if facts.nccl.renewed:
        texts.append(advice.LASTING_COMMUNICATORS)
    return " ".join(texts) or advice.LOST_OPERATIONS
