"""Where the time of a capture went, as shares of its window."""

from __future__ import annotations

from dataclasses import dataclass

from perfd.trace.diagnosis.trace_analysis import RankAnalysis, TraceAnalysis


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """Where the window goes, as means over ranks; they add up to one."""

    compute: float
    exposed_communication: float
    exposed_memory: float
    launch: float
    """Idle because the host had not launched, or the launch was on its way."""
    synchronization: float
    """Idle while the host waited for the GPU, or because it had."""
    unexplained_idle: float
    """Idle of ranks whose traces have no host calls."""


def shares(analysis: TraceAnalysis) -> TimeShares | None:
    """The mean shares; None when no rank has all its records."""
    ranks = [rank for rank in analysis.complete if rank.whole.span_s > 0]
    if not ranks:
        return None

    def mean(value: float) -> float:
        return value / len(ranks)

    return TimeShares(
        compute=mean(sum(rank.whole.compute_s / rank.whole.span_s for rank in ranks)),
        exposed_communication=mean(
            sum(rank.whole.exposed_communication_s / rank.whole.span_s for rank in ranks)
        ),
        exposed_memory=mean(sum(rank.whole.exposed_memory_s / rank.whole.span_s for rank in ranks)),
        launch=mean(sum(launch_idle_s(rank) / rank.whole.span_s for rank in ranks)),
        synchronization=mean(sum(sync_idle_s(rank) / rank.whole.span_s for rank in ranks)),
        unexplained_idle=mean(
            sum((rank.whole.idle_s or 0) / rank.whole.span_s for rank in ranks if rank.whole.idle is None)
        ),
    )


def launch_idle_s(rank: RankAnalysis) -> float:
    """Idle that faster launching would fill."""
    idle = rank.whole.idle
    return idle.unlaunched_s + idle.other_s if idle else 0.0


def sync_idle_s(rank: RankAnalysis) -> float:
    """Idle that fewer synchronizations would fill."""
    idle = rank.whole.idle
    return idle.synchronizing_s if idle else 0.0
