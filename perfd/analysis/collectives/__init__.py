"""NCCL operations: transfer against waiting, by rank, group and dimension, and who causes the waiting."""

from perfd.analysis.collectives.bandwidth_text import bandwidth_words, busiest
from perfd.analysis.collectives.kernel_time_by_dimension import NcclDimension
from perfd.analysis.collectives.nccl_summary import LateTogether, NcclSummary, SlowRank, StallingRanks, nccl
from perfd.analysis.collectives.pipeline_wait import SOURCE_WAITING, with_waiting
from perfd.analysis.collectives.slow_links import Reference, SlowGroup
from perfd.analysis.collectives.waiting_by_rank import NcclRank

__all__ = [
    "SOURCE_WAITING",
    "LateTogether",
    "NcclDimension",
    "NcclRank",
    "NcclSummary",
    "Reference",
    "SlowGroup",
    "SlowRank",
    "StallingRanks",
    "bandwidth_words",
    "busiest",
    "nccl",
    "with_waiting",
]
