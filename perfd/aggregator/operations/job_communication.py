"""What one start of a job showed of its communication; the communicators of its next start are others."""

from __future__ import annotations

from perfd.aggregator.limits import AggregatorCounters, Limits
from perfd.aggregator.operations.collective_progress import ProgressRows
from perfd.aggregator.operations.collective_tables import CollectiveRows
from perfd.aggregator.operations.host_wait_readings import HostWaitReadings
from perfd.aggregator.operations.launch_readings import LaunchReadings
from perfd.aggregator.operations.nccl_time_counters import NcclTimeCounters


class JobCommunication:
    """Operations, counters and progress by rank, and what the hosts did that launch them."""

    def __init__(self, limits: Limits, counters: AggregatorCounters) -> None:
        self.collectives = CollectiveRows(limits, counters)
        self.nccl = NcclTimeCounters(limits, counters)
        self.progress = ProgressRows(limits, counters)
        self.host_waits = HostWaitReadings(limits, counters)
        self.launches = LaunchReadings(limits, counters)

    def clear(self) -> None:
        """Forget all: counters begin anew, too."""
        for part in (self.collectives, self.nccl, self.progress, self.host_waits, self.launches):
            part.clear()
