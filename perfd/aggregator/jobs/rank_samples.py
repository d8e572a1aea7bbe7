"""Readings of collectors by rank: NCCL's counters, and how long ranks waited for their hosts."""

from __future__ import annotations

import math
from collections.abc import Mapping

from perfd.aggregator.jobs.job_state import JobState
from perfd.aggregator.jobs.record_source import RecordSource
from perfd.aggregator.operations import HOST_COLUMNS, LAUNCH_COLUMNS
from perfd.model import RankColumn, SampleTable

_MOST_RANK_DIGITS = 9
"""Most digits of a rank; longer numbers are garbage."""


def put_rank_samples(table: SampleTable, jobs: Mapping[str, JobState], source: RecordSource) -> None:
    """Add readings by rank to the jobs that are known; an entity is `JOB/RANK`."""
    busy_s = table.columns.get(RankColumn.NCCL_BUSY)
    lost = table.columns.get(RankColumn.NCCL_LOST_OPERATIONS)
    begun = table.columns.get(RankColumn.NCCL_OPERATIONS) or [math.nan] * len(table.entities)
    hosts = {column: table.columns[column] for column in LAUNCH_COLUMNS if column in table.columns}
    waits = {column: table.columns[column] for column in HOST_COLUMNS if column in table.columns}
    for row, (time_unix_ns, entity) in enumerate(zip(table.times_unix_ns, table.entities, strict=True)):
        name, _, rank = entity.rpartition("/")
        job = jobs.get(name)
        if job is None or len(rank) > _MOST_RANK_DIGITS or not rank.isdecimal():
            continue
        time_unix_s = time_unix_ns / 1e9
        # Clocks of nodes may disagree by any amount; how long ago it was by its own one is sure.
        read_s = source.now_s - max(0.0, source.sent_unix_s - time_unix_s)
        if busy_s is not None and lost is not None:
            busy, gone = busy_s[row], lost[row]
            if math.isfinite(gone) and not math.isinf(busy):
                job.communication.nccl.put(int(rank), time_unix_s, busy, gone, begun[row], read_s=read_s)
        if hosts:
            read = {column: values[row] for column, values in hosts.items()}
            job.communication.launches.put(int(rank), time_unix_s, read, read_s=read_s)
        if waits:
            job.communication.host_waits.put(
                int(rank), {column: values[row] for column, values in waits.items()}, read_s=read_s
            )
