"""NCCL operations per job as arrays, the steps that they show, and what the hosts of ranks waited for."""

from perfd.aggregator.operations.collective_tables import CollectiveRows, ProgressRows
from perfd.aggregator.operations.host_wait_readings import HOST_COLUMNS, HostWaitReadings
from perfd.aggregator.operations.launch_readings import LAUNCH_COLUMNS, LaunchReadings
from perfd.aggregator.operations.nccl_time_counters import NcclTimeCounters
from perfd.aggregator.operations.operation_steps import OperationSteps

__all__ = [
    "HOST_COLUMNS",
    "LAUNCH_COLUMNS",
    "CollectiveRows",
    "HostWaitReadings",
    "LaunchReadings",
    "NcclTimeCounters",
    "OperationSteps",
    "ProgressRows",
]
