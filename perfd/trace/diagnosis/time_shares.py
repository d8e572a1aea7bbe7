"""The form of what a trace's diagnosis says, and the shares that it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from perfd.trace.diagnosis.trace_analysis import RankAnalysis, TraceAnalysis


class FindingKind(StrEnum):
    """What costs time. The first five are the classes of bottleneck, of which a capture has one."""

    COMPUTE = "compute_bound"
    COMMUNICATION = "communication_bound"
    LAUNCH = "launch_bound"
    SYNCHRONIZATION = "sync_bound"
    MEMORY_COPY = "memory_copy_bound"
    PIPELINE = "pipeline_stall"
    STRAGGLER = "straggler"
    LOST_RECORDS = "lost_records"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFinding:
    """One thing that costs time, or that keeps the numbers from being whole."""

    kind: FindingKind
    confidence: float
    """0 to 1, as `perfd.trace.diagnosis.confidence` says."""
    ranks: Sequence[int] = ()
    """Who is to blame; empty when it is all of them."""
    evidence: Sequence[str] = ()
    """Sentences with numbers and their source."""
    recommendation: str = ""
    lost_ratio: float | None = None
    """About how much of the window it takes: what there is to gain at most."""


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
    """Idle that fewer synchronisations would fill."""
    idle = rank.whole.idle
    return idle.synchronizing_s if idle else 0.0
