"""Whether GPUs idle in a capture because the host fetches input."""

from __future__ import annotations

from perfd.analysis.findings import Culprit, Finding, Kind, advice
from perfd.formatting import duration, percent
from perfd.thresholds import THRESHOLDS
from perfd.trace.breakdown import LoaderTime, loader_time
from perfd.trace.diagnosis.confidence import MEASURED, seen
from perfd.trace.diagnosis.trace_analysis import RankAnalysis, TraceAnalysis

_NAMES = 2
"""Of ranges in which the host fetches input, in one sentence."""


def judge_loading(analysis: TraceAnalysis) -> Finding | None:
    """Idle time in loader ranges, the slowest rank's, as the others wait for it; None where it is little."""
    known = [(rank, found) for rank in analysis.complete if (found := loader_time(rank.timeline)) is not None]
    shares = sorted(((_share(rank, found), rank, found) for rank, found in known), key=lambda one: -one[0])
    if not shares or shares[0][0] < THRESHOLDS.data_loading_ratio:
        return None
    most, slowest, loader = shares[0]
    names = ", ".join(loader.names[:_NAMES])
    evidence = [
        (
            f"The GPU of rank {slowest.rank} has nothing to run for {duration(loader.idle_s)} of"
            f" {duration(slowest.whole.span_s)} while its host fetches input (gaps in the ranges {names})."
        )
    ]
    alone = len(shares) > 1 and most - shares[1][0] >= THRESHOLDS.data_loading_spread_ratio
    if len(shares) > 1:
        who = "its peers wait for it" if alone else "all ranks wait for input"
        evidence.append(f"On the rank with the least it is {percent(shares[-1][0])}: {who}.")
    return Finding(
        kind=Kind.DATA_LOADING,
        confidence=seen(MEASURED, analysis),
        culprits=[Culprit(kind="rank", id=slowest.rank)] if alone else [],
        evidence=evidence,
        advice=advice.SLOW_INPUT,
        gain_ratio=most,
    )


def _share(rank: RankAnalysis, found: LoaderTime) -> float:
    return found.idle_s / rank.whole.span_s if rank.whole.span_s else 0.0
