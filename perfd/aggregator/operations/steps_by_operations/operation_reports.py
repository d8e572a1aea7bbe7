"""A report of operations as columns, and one in how many it has: agents leave some out at high rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from perfd.analysis.data.job_data import Bools, Floats, Ints
from perfd.model import CollectiveTimes

_FEWEST_SAMPLED = 16
"""Operations of a report, whose sequence numbers must be equally far apart."""
_MOST_SEQUENCE = 1 << 62
"""Larger sequence numbers are garbage and may not fit in an array."""
SIZE, START, END, QUEUED, REPORTED = range(5)
"""Columns of each operation; `REPORTED` is 0 where the others are estimates for one that was not reported."""


@dataclass(frozen=True, slots=True)
class ReportEnd:
    """What a stream had done when a report ended."""

    unix_ns: int
    seen: int
    """Operations, since the first report."""
    sequence: int
    """Of the newest one."""


@dataclass(frozen=True, slots=True)
class TimedOperations:
    """(n,) large operations by the node's clock, and the stream's totals at the end of each."""

    start_us: Floats
    end_us: Floats
    queued_us: Floats
    """Time from when the host enqueued each until its start."""
    seen: Ints
    """Operations of the stream so far."""
    moved_bytes: Floats
    reported: Bools
    """Whether the times of each were reported; else they are estimates."""

    def __len__(self) -> int:
        return len(self.seen)

    def each(self, rows: slice) -> TimedOperations:
        """Those in `rows`."""
        return TimedOperations(
            self.start_us[rows],
            self.end_us[rows],
            self.queued_us[rows],
            self.seen[rows],
            self.moved_bytes[rows],
            self.reported[rows],
        )


def is_whole(times: CollectiveTimes) -> bool:
    """Whether it lists single operations, each with a size, and all numbers fit in arrays."""
    sequences = times.sequences
    whole = len(times.sizes_bytes) == len(sequences) > 0 and max(sequences) <= _MOST_SEQUENCE
    return whole and math.isfinite(times.total_bytes or 0.0)


def stride_of(times: CollectiveTimes) -> int | None:
    """One in how many operations is reported; None if that varies."""
    sequences = times.sequences
    if len(sequences) == times.count:
        return 1
    # Operations that share a kernel leave gaps, too; a few of these may be even by chance.
    if len(sequences) < _FEWEST_SAMPLED:
        return None
    stride = sequences[1] - sequences[0]
    evenly = stride > 1 and all(after - before == stride for before, after in pairwise(sequences))
    return stride if evenly else None


def thinned(columns: Floats, sequences: Ints, stride: int) -> tuple[Floats, Ints]:
    """Of (rows, n) columns and (n,) sequence numbers those that an agent with this stride would report."""
    kept = sequences % stride == 0
    return columns[:, kept], sequences[kept]


def columns_of(times: CollectiveTimes) -> Floats:
    """(5, n): size, start, end and time in the queue of each operation, which were all reported."""
    count = len(times.sequences)
    columns = np.full((5, count), np.nan)
    columns[SIZE] = times.sizes_bytes
    columns[REPORTED] = 1.0
    known = (times.durations_ns, times.start_increments_us, times.queued_us)
    if all(len(column) == count for column in known):
        columns[START] = times.start_increments_us
        columns[START, 0] += times.start_unix_ns // 1000
        columns[START] = columns[START].cumsum()
        columns[END] = columns[START] + np.array(times.durations_ns, dtype=np.float64) // 1000
        columns[QUEUED] = times.queued_us
    return columns


def in_order(columns: Floats, sequences: Ints) -> tuple[Floats, Ints]:
    """Both by sequence number: reports are by start times, which NCCL may give late for single operations."""
    if (sequences[1:] > sequences[:-1]).all():
        return columns, sequences
    order = sequences.argsort(kind="stable")
    return columns[:, order], sequences[order]
