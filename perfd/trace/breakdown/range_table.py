"""What the GPU did for each range that the program named on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from perfd.trace.breakdown.rank_breakdown import RankTimeline

MAX_ROWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    """All ranges of one name that began in the window. Nested ranges overlap: rows do not add up."""

    name: str
    count: int
    host_s: float
    """Sum of the ranges on the host."""
    host_median_s: float
    host_min_s: float
    host_max_s: float
    gpu_s: float
    """Sum of the ranges projected to the GPU: from the first to the last operation launched within."""
    busy_s: float
    """Sum of the durations of those operations."""
    operation_count: int


def phase_rows(timeline: RankTimeline) -> list[PhaseRow]:
    """One row a name in the window, those that keep the GPU longest first, at most `MAX_ROWS`."""
    return range_rows(timeline)[:MAX_ROWS] if len(timeline.trace.calls) else []


def range_rows(
    timeline: RankTimeline, name_of: Callable[[str], str] = str, *, whole_trace: bool = False
) -> list[PhaseRow]:
    """One row for each name that `name_of` gives to ranges, those that keep the GPU longest first."""
    trace, window = timeline.trace, timeline.window
    phases = [
        phase for phase in trace.phases if whole_trace or window.start_ns <= phase.start_ns < window.end_ns
    ]
    if not phases:
        return []
    at = timeline.launched_by
    known = np.flatnonzero(at >= 0)
    thread, launched = trace.calls.thread[at[known]], trace.calls.start_ns[at[known]]
    order = np.lexsort((launched, thread))
    known, thread, launched = known[order], thread[order], launched[order]
    starts, ends = trace.operations.start_ns[known], trace.operations.end_ns[known]
    busy = np.concatenate(([0], np.cumsum(ends - starts)))
    bounds = {
        int(one): np.searchsorted(thread, (one, one + 1)).tolist() for one in sorted(set(thread.tolist()))
    }
    rows: dict[str, list[int]] = {}
    lengths: dict[str, list[int]] = {}
    for phase in phases:
        low, high = bounds.get(phase.thread, (0, 0))
        first = low + int(np.searchsorted(launched[low:high], phase.start_ns))
        last = low + int(np.searchsorted(launched[low:high], phase.end_ns))
        name = name_of(phase.name)
        row = rows.setdefault(name, [0, 0, 0, 0, 0])
        lengths.setdefault(name, []).append(phase.end_ns - phase.start_ns)
        row[0] += 1
        row[1] += phase.end_ns - phase.start_ns
        if last > first:
            row[2] += int(ends[first:last].max() - starts[first:last].min())
            row[3] += int(busy[last] - busy[first])
            row[4] += last - first
    found = [
        PhaseRow(
            name=name,
            count=count,
            host_s=host_ns / 1e9,
            host_median_s=float(np.median(lengths[name])) / 1e9,
            host_min_s=min(lengths[name]) / 1e9,
            host_max_s=max(lengths[name]) / 1e9,
            gpu_s=gpu_ns / 1e9,
            busy_s=busy_ns / 1e9,
            operation_count=operations,
        )
        for name, (count, host_ns, gpu_ns, busy_ns, operations) in rows.items()
    ]
    return sorted(found, key=lambda row: (-row.gpu_s, -row.host_s, row.name))
