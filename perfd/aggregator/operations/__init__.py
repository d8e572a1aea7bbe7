"""The NCCL operations held per job, as arrays."""

from perfd.aggregator.operations.collective_tables import CollectiveRows, ProgressRows
from perfd.aggregator.operations.nccl_time_counters import NcclTimeCounters

__all__ = [
    "CollectiveRows",
    "NcclTimeCounters",
    "ProgressRows",
]
