"""What only shows when ranks are compared: lost records, stragglers, stalls of a pipeline."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from perfd.formatting import duration, percent
from perfd.trace.breakdown import MAX_LOST_RATIO, spans_stages
from perfd.trace.diagnosis.confidence import CONFIRMED, MEASURED, seen
from perfd.trace.diagnosis.time_shares import FindingKind, TraceFinding
from perfd.trace.diagnosis.trace_analysis import TraceAnalysis, by_rank

STRAGGLER_RATIO = 0.05
STRAGGLER_SHARE = 0.60
SLOWER_RATIO = 1.05
PIPELINE_RATIO = 0.10


def judge_losses(analysis: TraceAnalysis) -> TraceFinding | None:
    """Ranks of which too many GPU records are missing."""
    ranks = [rank for rank in analysis.ranks if not rank.timeline.complete]
    if not ranks:
        return None
    evidence = [
        f"Rank {rank.rank}: {found.lost} of {found.launches} launches ({percent(found.ratio)}) have no kernel"
        " in the trace (launch calls against kernels, by correlation)."
        for rank in ranks
        if (found := rank.timeline.losses) is not None
    ]
    return TraceFinding(
        kind=FindingKind.LOST_RECORDS,
        confidence=CONFIRMED,
        ranks=[rank.rank for rank in ranks],
        evidence=evidence,
        recommendation=(
            f"The profiler lost more than {percent(MAX_LOST_RATIO)} of these ranks' GPU records: their idle"
            " time is unknown, and their other times are what was recorded. Capture again, shorter or with"
            " fewer ranks in one session."
        ),
    )


def judge_straggler(analysis: TraceAnalysis) -> TraceFinding | None:
    """A rank that its peers wait for in most collectives."""
    ranks = by_rank(analysis)
    stages = {rank.rank: rank.stage for rank in analysis.ranks}
    caused: dict[int, float] = defaultdict(float)
    operations, peers = 0, set[int]()
    for group in analysis.collectives.waiting:
        if spans_stages(group.ranks, stages):
            continue
        operations += group.blame.operations
        peers.update(group.ranks)
        for rank, seconds in zip(group.ranks, group.blame.caused_s.tolist(), strict=True):
            caused[rank] += seconds
    total = sum(caused.values())
    if not total:
        return None
    worst = max(caused, key=lambda rank: caused[rank])
    ratio = caused[worst] / ranks[worst].whole.span_s
    if ratio <= STRAGGLER_RATIO or caused[worst] < STRAGGLER_SHARE * total:
        return None
    others = [ranks[rank].whole.compute_s for rank in peers if rank != worst]
    slower = ranks[worst].whole.compute_s / float(np.median(others)) if others and min(others) > 0 else None
    evidence = [
        (
            f"Its peers wait {duration(caused[worst])} for rank {worst}, {percent(ratio)} of the window"
            f" and {percent(caused[worst] / total)} of all waiting (durations of {operations} collectives)."
        )
    ]
    advice = (
        f"Look at the host of rank {worst} (input, Python, CPU): its GPU computes no longer than its peers'."
    )
    confidence = MEASURED
    if slower is not None and slower > SLOWER_RATIO:
        evidence.append(
            f"Its kernels run {slower:.2f} times as long as its peers' median (union of compute)."
        )
        advice = (
            f"Compare the kernels of rank {worst} with a peer's: slower ones mean the GPU (clock, heat,"
            " another process), more of them mean uneven work."
        )
        confidence = CONFIRMED
    return TraceFinding(
        kind=FindingKind.STRAGGLER,
        confidence=seen(confidence, analysis),
        ranks=[worst],
        evidence=evidence,
        recommendation=advice,
        lost_ratio=ratio,
    )


def judge_pipeline(analysis: TraceAnalysis) -> TraceFinding | None:
    """Stages that stand still for each other."""
    known = [(stall, ratio) for stall in analysis.stages if (ratio := stall.stall_ratio) is not None]
    if not known:
        return None
    mean = sum(ratio for _, ratio in known) / len(known)
    if mean <= PIPELINE_RATIO:
        return None
    busiest = max((stall for stall, _ in known), key=lambda stall: stall.compute_s)
    idlest = min((stall for stall, _ in known), key=lambda stall: stall.compute_s)
    named = "stage" if busiest.stage is not None else "rank"
    of_all = "; ".join(
        f"{named} {stall.rank if stall.stage is None else stall.stage}: {percent(ratio)}"
        for stall, ratio in known
    )
    uneven = busiest.compute_s > SLOWER_RATIO * idlest.compute_s
    evidence = [
        (
            f"Stages stand still for {percent(mean)} of the window, waiting for messages and barriers of"
            f" other stages ({of_all})."
        )
    ]
    if uneven:
        evidence.append(
            f"Rank {busiest.rank} computes {duration(busiest.compute_s)}, rank {idlest.rank} only"
            f" {duration(idlest.compute_s)} in the same window."
        )
    return TraceFinding(
        kind=FindingKind.PIPELINE,
        confidence=seen(MEASURED, analysis),
        ranks=[busiest.rank] if uneven else [],
        evidence=evidence,
        recommendation=(
            "Give the pipeline more micro-batches or an interleaved schedule"
            + (f", and move work away from rank {busiest.rank}'s stage." if uneven else ".")
        ),
        lost_ratio=mean,
    )
