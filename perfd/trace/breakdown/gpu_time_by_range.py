"""What the GPU did for each range that the program named on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from perfd.trace.breakdown.rank_breakdown import RankTimeline
from perfd.trace.model.intervals import Ns

MAX_ROWS = 200
"""In a summary of a trace; `perfd trace table` has all."""
_TURNS_RATIO = 0.1
"""Changes between two threads per launch of one: 10 of 2,511 for autograd's in a profile of five steps."""


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
    payload_mean: float | None = None
    """Of the numbers that the program gave with these ranges; None where it gave none."""
    payload_min: float | None = None
    payload_max: float | None = None


class _Launches:
    """The operations that a thread, or one that takes turns with it, launched; in order of the launch."""

    def __init__(self, timeline: RankTimeline, at: Ns, launched_ns: Ns) -> None:
        operations = timeline.trace.operations
        self.launched_ns, self.start_ns, self.end_ns = (
            launched_ns,
            operations.start_ns[at],
            operations.end_ns[at],
        )
        self.busy_ns = np.concatenate(([0], np.cumsum(self.end_ns - self.start_ns)))


def _taking_turns(thread: Ns, one: int) -> list[int]:
    """Threads that launch while this one does not, by the thread of each launch in order of time.

    PyTorch's autograd launches the backward pass from another thread, for which the caller waits: what
    it launches within a range of the caller is of that range. Threads that work beside it alternate.
    """
    found = []
    for other in np.unique(thread[thread != one]).tolist():
        both = thread[(thread == one) | (thread == other)]
        turns = int(np.count_nonzero(both[1:] != both[:-1]))
        if turns <= _TURNS_RATIO * int(np.count_nonzero(both == other)):
            found.append(int(other))
    return found


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
    order = np.argsort(launched, kind="stable")
    known, thread, launched = known[order], thread[order], launched[order]
    launches = {
        one: _Launches(timeline, known[mine], launched[mine])
        for one in {phase.thread for phase in phases}
        for mine in (np.isin(thread, [one, *_taking_turns(thread, one)]),)
    }
    rows: dict[str, list[int]] = {}
    lengths: dict[str, list[int]] = {}
    payloads: dict[str, list[float]] = {}
    for phase in phases:
        mine = launches[phase.thread]
        first, last = np.searchsorted(mine.launched_ns, (phase.start_ns, phase.end_ns)).tolist()
        name = name_of(phase.name)
        row = rows.setdefault(name, [0, 0, 0, 0, 0])
        lengths.setdefault(name, []).append(phase.end_ns - phase.start_ns)
        if phase.payload is not None:
            payloads.setdefault(name, []).append(phase.payload)
        row[0] += 1
        row[1] += phase.end_ns - phase.start_ns
        if last > first:
            row[2] += int(mine.end_ns[first:last].max() - mine.start_ns[first:last].min())
            row[3] += int(mine.busy_ns[last] - mine.busy_ns[first])
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
            payload_mean=float(np.mean(given)) if given else None,
            payload_min=min(given, default=None),
            payload_max=max(given, default=None),
        )
        for name, (count, host_ns, gpu_ns, busy_ns, operations) in rows.items()
        for given in (payloads.get(name, []),)
    ]
    return sorted(found, key=lambda row: (-row.gpu_s, -row.host_s, row.name))
