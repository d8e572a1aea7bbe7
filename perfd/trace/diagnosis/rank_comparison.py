"""What only shows when ranks are compared: lost records, stragglers, stalls of a pipeline."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from perfd.analysis.findings import Culprit, Finding, Kind, advice
from perfd.formatting import duration, percent
from perfd.thresholds import THRESHOLDS
from perfd.trace.breakdown import spans_stages
from perfd.trace.diagnosis.confidence import CONFIRMED, MEASURED, seen
from perfd.trace.diagnosis.slow_rank_cause import PeerComparison, compare
from perfd.trace.diagnosis.trace_analysis import TraceAnalysis, by_rank


def judge_losses(analysis: TraceAnalysis) -> Finding | None:
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
    return Finding(
        kind=Kind.MISSING_TELEMETRY,
        confidence=CONFIRMED,
        culprits=[Culprit(kind="rank", id=rank.rank) for rank in ranks],
        evidence=evidence,
        advice=advice.capture_again(THRESHOLDS.trace_lost_records_ratio),
    )


def straggler_of(
    analysis: TraceAnalysis, slow_rank: int | None
) -> tuple[Finding | None, PeerComparison | None]:
    """The slow rank, compared with its peers: `slow_rank` if given, otherwise the one that peers wait for."""
    found = judge_straggler(analysis)
    named = found.concerned_ranks[0] if found else None
    about = named if slow_rank is None else slow_rank
    if about is None:
        return found, None
    comparison = compare(analysis, about)
    if comparison.cost_ratio is None or not comparison.alike:
        return found, comparison
    if found is not None and about == named:
        return replace(found, evidence=(comparison.answer, *found.evidence)), comparison
    if found is not None or comparison.cost_ratio < THRESHOLDS.straggler_wait_ratio:
        return found, comparison
    return _by_comparison(analysis, comparison), comparison


def _by_comparison(analysis: TraceAnalysis, comparison: PeerComparison) -> Finding:
    """A requested rank that does more than its peers, if no collective shows which ranks wait."""
    return Finding(
        kind=Kind.STRAGGLER,
        confidence=seen(MEASURED, analysis),
        culprits=[Culprit(kind="rank", id=comparison.rank)],
        evidence=[comparison.answer],
        advice=advice.late_rank_seen(comparison.rank),
        gain_ratio=comparison.cost_ratio,
    )


def judge_straggler(analysis: TraceAnalysis) -> Finding | None:
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
    if ratio <= THRESHOLDS.straggler_wait_ratio or caused[worst] < THRESHOLDS.straggler_share_ratio * total:
        return None
    others = [ranks[rank].whole.compute_s for rank in peers if rank != worst]
    slower = ranks[worst].whole.compute_s / float(np.median(others)) if others and min(others) > 0 else None
    evidence = [
        (
            f"Its peers wait {duration(caused[worst])} for rank {worst}, {percent(ratio)} of the window"
            f" and {percent(caused[worst] / total)} of all waiting (durations of {operations} collectives)."
        )
    ]
    todo = advice.slow_host(worst)
    confidence = MEASURED
    if slower is not None and slower > THRESHOLDS.straggler_kernels_ratio:
        evidence.append(
            f"Its kernels run {slower:.2f} times as long as its peers' median (union of compute)."
        )
        todo = advice.slower_kernels(worst)
        confidence = CONFIRMED
    return Finding(
        kind=Kind.STRAGGLER,
        confidence=seen(confidence, analysis),
        culprits=[Culprit(kind="rank", id=worst)],
        evidence=evidence,
        advice=todo,
        gain_ratio=ratio,
    )


def judge_pipeline(analysis: TraceAnalysis) -> Finding | None:
    """Stages that wait for each other."""
    known = [(stall, ratio) for stall in analysis.stages if (ratio := stall.stall_ratio) is not None]
    if not known:
        return None
    mean = sum(ratio for _, ratio in known) / len(known)
    if mean <= THRESHOLDS.pipeline_trace_stall_ratio:
        return None
    busiest = max((stall for stall, _ in known), key=lambda stall: stall.compute_s)
    idlest = min((stall for stall, _ in known), key=lambda stall: stall.compute_s)
    named = "stage" if busiest.stage is not None else "rank"
    of_all = "; ".join(
        f"{named} {stall.rank if stall.stage is None else stall.stage}: {percent(ratio)}"
        for stall, ratio in known
    )
    computing = sum(stall.compute_s for stall, _ in known) / len(known)
    span_s = max(by_rank(analysis)[stall.rank].whole.span_s for stall, _ in known)
    imbalance = (busiest.compute_s - computing) / span_s
    uneven = imbalance > max(mean / 2, THRESHOLDS.pipeline_imbalance_ratio)
    evidence = [
        (
            f"Stages stall for {percent(mean)} of the window, waiting for messages and barriers of"
            f" other stages ({of_all})."
        )
    ]
    if uneven:
        evidence.append(
            f"Rank {busiest.rank} computes {duration(busiest.compute_s)}, rank {idlest.rank} only"
            f" {duration(idlest.compute_s)} in the same window."
        )
    return Finding(
        kind=Kind.PIPELINE_IMBALANCE if uneven else Kind.PIPELINE_BUBBLE,
        confidence=seen(MEASURED, analysis),
        culprits=[Culprit(kind="rank", id=busiest.rank)] if uneven else [],
        evidence=evidence,
        advice=f"{advice.BALANCE_STAGES} {advice.FILL_PIPELINE}" if uneven else advice.FILL_PIPELINE,
        gain_ratio=mean,
    )
