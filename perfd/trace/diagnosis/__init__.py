"""What limits a captured job, from the breakdown of its ranks."""

from perfd.trace.diagnosis.confidence import MEASURED, MODELLED
from perfd.trace.diagnosis.slow_rank_cause import PeerComparison
from perfd.trace.diagnosis.time_shares import TimeShares
from perfd.trace.diagnosis.trace_analysis import (
    DEFAULT_PRECISION,
    RankAnalysis,
    TraceAnalysis,
    TraceSettings,
    analyse,
)
from perfd.trace.diagnosis.trace_bottleneck import Diagnosis, diagnose
from perfd.trace.diagnosis.trace_json import notes, to_json

__all__ = [
    "DEFAULT_PRECISION",
    "MEASURED",
    "MODELLED",
    "Diagnosis",
    "PeerComparison",
    "RankAnalysis",
    "TimeShares",
    "TraceAnalysis",
    "TraceSettings",
    "analyse",
    "diagnose",
    "notes",
    "to_json",
]
