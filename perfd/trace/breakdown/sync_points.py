"""Where the host waits for the GPU: which call, in which named range, how often."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfd.trace.breakdown.idle_time import waiting_calls
from perfd.trace.breakdown.rank_breakdown import RankTimeline
from perfd.trace.model.intervals import Coverage
from perfd.trace.model.rank_trace import Phase

_VERSION = re.compile(r"_(?:v\d{1,8}|ptsz|ptds)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPoint:
    """All waits of one call in one range, within the window of a rank."""

    call: str
    """`cudaStreamSynchronize`; a copy that returned when it was done is `cudaMemcpyAsync`."""
    range_name: str
    """The innermost range around it; empty outside of ranges."""
    count: int
    per_step: float | None
    """None without whole steps."""
    host_s: float
    idle_s: float
    """The part in which the GPU ran nothing."""


def sync_points(timeline: RankTimeline) -> list[SyncPoint]:
    """What the host waits in, that with the longest waits first."""
    trace, window = timeline.trace, timeline.window
    calls = trace.calls
    if not len(calls):
        return []
    inside = (calls.start_ns >= window.start_ns) & (calls.start_ns < window.end_ns)
    chosen = np.flatnonzero(waiting_calls(trace, timeline.launched_by) & inside)
    if not len(chosen):
        return []
    starts, ends = calls.start_ns[chosen], calls.end_ns[chosen]
    idle = Coverage(*timeline.busy.gaps(int(starts.min()), int(ends.max())))
    idle_ns = idle.covered_many_ns(starts, ends)
    around = _Ranges(trace.phases)
    found: dict[tuple[str, str], list[int]] = {}
    for at, start, end, idled in zip(
        chosen.tolist(), starts.tolist(), ends.tolist(), idle_ns.tolist(), strict=True
    ):
        name = _VERSION.sub("", trace.call_names[calls.name[at]]) if trace.call_names else "a call"
        row = found.setdefault((name, around.at(int(calls.thread[at]), start)), [0, 0, 0])
        row[0] += 1
        row[1] += end - start
        row[2] += idled
    steps = len(timeline.by_step())
    points = [
        SyncPoint(
            call=name,
            range_name=range_name,
            count=count,
            per_step=count / steps if steps else None,
            host_s=host_ns / 1e9,
            idle_s=idled_ns / 1e9,
        )
        for (name, range_name), (count, host_ns, idled_ns) in found.items()
    ]
    return sorted(points, key=lambda one: (-one.idle_s, -one.host_s, one.call, one.range_name))


class _Ranges:
    """The innermost range of a thread at times that only grow."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        self._coming: dict[int, list[Phase]] = {}
        for phase in sorted(phases, key=lambda one: (one.start_ns, -one.end_ns), reverse=True):
            self._coming.setdefault(phase.thread, []).append(phase)
        self._open: dict[int, list[Phase]] = {}

    def at(self, thread: int, time_ns: int) -> str:
        coming, open_ = self._coming.get(thread, []), self._open.setdefault(thread, [])
        while coming and coming[-1].start_ns <= time_ns:
            open_.append(coming.pop())
        while open_ and open_[-1].end_ns <= time_ns:
            open_.pop()
        # Ranges that are started and ended need not nest.
        return next((phase.name for phase in reversed(open_) if phase.end_ns > time_ns), "")
