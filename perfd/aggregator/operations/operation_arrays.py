"""The single operations of one record, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd.analysis.data.job_data import Bools, Floats, Ints
from perfd.model import CollectiveTimes

_MOST_SEQUENCE = 1 << 62
"""Larger sequence numbers are garbage, and sums of them would not fit."""


@dataclass(frozen=True, slots=True)
class OperationArrays:
    """What one rank reported, in the order of sequence numbers; sizes may be unknown."""

    sequence: Ints
    durations_s: Floats
    size_bytes: Floats | None
    gpu_starts_ns: Ints | None

    def rows(self, chosen: Bools | Ints) -> OperationArrays:
        """The same of some operations only."""
        sizes = None if self.size_bytes is None else self.size_bytes[chosen]
        starts = None if self.gpu_starts_ns is None else self.gpu_starts_ns[chosen]
        return OperationArrays(self.sequence[chosen], self.durations_s[chosen], sizes, starts)


def reported_by(times: CollectiveTimes, span: int) -> OperationArrays | None:
    """The operations of a record, of the newest `span` sequence numbers; None without, or for garbage."""
    count = len(times.sequences)
    optional = (times.sizes_bytes, times.gpu_starts_ns)
    if count != len(times.durations_ns) or any(len(column) not in {0, count} for column in optional):
        return None
    if not count or not 0 <= min(times.sequences) <= max(times.sequences) < _MOST_SEQUENCE:
        return None
    reported = OperationArrays(
        sequence=np.array(times.sequences, dtype=np.int64),
        durations_s=np.array(times.durations_ns, dtype=np.float64) / 1e9,
        size_bytes=np.array(times.sizes_bytes, dtype=np.float64) if times.sizes_bytes else None,
        gpu_starts_ns=np.array(times.gpu_starts_ns, dtype=np.int64) if times.gpu_starts_ns else None,
    )
    if count == 1:
        return reported
    if not (reported.sequence[1:] > reported.sequence[:-1]).all():
        # Of two with one number the later one counts.
        reported = reported.rows(count - 1 - np.unique(reported.sequence[::-1], return_index=True)[1])
    if reported.sequence[-1] - reported.sequence[0] < span:
        return reported
    return reported.rows(reported.sequence > reported.sequence[-1] - span)


def new_ratio(times: CollectiveTimes, newest: int) -> float:
    """Share of a record's operations that are newer than the newest one reported before.

    An agent that begins with an empty spool beside a running job reports all that the plugin's segments hold.
    """
    if not times.sequences or times.sequences[0] > newest:
        return 1.0
    return sum(number > newest for number in times.sequences) / len(times.sequences)
