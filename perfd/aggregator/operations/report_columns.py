"""A report of operations as columns, and one in how many it has: agents leave some out at high rates."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from perfd.analysis.data.job_data import Floats, Ints
from perfd.model import CollectiveTimes

_FEWEST_SAMPLED = 16
"""Operations of a report, whose sequence numbers must be equally far apart."""
SIZE, START, END, QUEUED = range(4)
"""Columns of each operation."""


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
    """(4, n): size, start, end and time in the queue of each operation."""
    count = len(times.sequences)
    columns = np.full((4, count), np.nan)
    columns[SIZE] = times.sizes_bytes
    known = (times.durations_ns, times.start_increments_us, times.queued_us)
    if all(len(column) == count for column in known):
        columns[START] = times.start_increments_us
        columns[START, 0] += times.start_unix_ns // 1000
        columns[START] = columns[START].cumsum()
        columns[END] = columns[START] + np.array(times.durations_ns, dtype=np.float64) // 1000
        columns[QUEUED] = times.queued_us
    return columns
