"""What each operation on a rank's GPU began after, and what each wait of its host ended with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfd.trace.breakdown.idle_time import waiting_calls
from perfd.trace.breakdown.rank_breakdown import RankTimeline
from perfd.trace.model.intervals import Flags, Indices, Ns
from perfd.trace.model.operation_kinds import HostCallKind

QUEUED_GAP_NS = 5_000
"""An operation that was launched while the one before it on its stream ran begins about 1 µs after that one
(H200: 0.7 to 1.6 µs between kernels). After a longer gap something else released it."""
_NEVER = np.iinfo(np.int64).min // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityLinks:
    """n operations and w waits of one rank, with nanoseconds on its clock."""

    before: Indices
    """Of each operation: the one whose end released it, which has a lower index; -1 where its launch did, or
    nothing is known."""
    previous: Indices
    """The one before it on its stream; -1 for none."""
    launched_ns: Ns
    """When the host's call that launched it returned; its start at the latest. -1 where that is unknown."""
    wait_start_ns: Ns
    """In order of the waits' ends."""
    wait_end_ns: Ns
    awaited: Ns
    """The operation that ended last before the wait did; it began earlier than the wait ended."""
    held: Flags
    """Whether it ended within the wait, which lasted until then."""


def activity_links(timeline: RankTimeline) -> ActivityLinks:
    """The dependencies of a rank, from times, streams and launches.

    Traces do not record what a stream waits for. An operation that neither its stream nor its launch held
    back is taken to have begun after what ended last before it, on any stream.
    """
    operations = timeline.trace.operations
    starts, ends = operations.start_ns, operations.end_ns
    launched = _launched_ns(timeline)
    previous = _previous(operations.stream)
    previous_end = np.where(previous >= 0, np.append(ends, _NEVER)[previous], _NEVER)
    by_end = np.argsort(ends, kind="stable")
    latest = _last_ended(ends, by_end, starts, side="right")
    # Operations of no length end where they begin: none must have released itself or one before it.
    circular = np.flatnonzero(latest >= np.arange(len(latest)))
    latest[circular] = _last_ended(ends, by_end, starts[circular], side="left")
    latest_end = np.where(latest >= 0, np.append(ends, _NEVER)[latest], _NEVER)
    # Beside an end, a launch that is not known counts as long ago.
    launch = np.where(launched >= 0, launched, _NEVER)
    queued = (previous >= 0) & (launch <= previous_end) & (starts - previous_end <= QUEUED_GAP_NS)
    del by_end, previous_end
    before = np.where(queued, previous, np.where((latest_end >= launch) & (latest_end != _NEVER), latest, -1))
    del latest, latest_end, launch, queued
    wait_starts, wait_ends, awaited = _waits(timeline)
    return ActivityLinks(
        before=before.astype(np.int32),
        previous=previous.astype(np.int32),
        launched_ns=launched,
        wait_start_ns=wait_starts,
        wait_end_ns=wait_ends,
        awaited=awaited,
        held=np.append(ends, _NEVER)[awaited] > wait_starts,
    )


def _last_ended(ends: Ns, by_end: Ns, until: Ns, *, side: Literal["left", "right"]) -> Ns:
    """Which operation ended last before each of some times, with "right" also at it; -1 for none."""
    place = np.searchsorted(ends[by_end], until, side=side) - 1
    return np.where(place >= 0, by_end[np.maximum(place, 0)], -1)


def _launched_ns(timeline: RankTimeline) -> Ns:
    at, operations = timeline.launched_by, timeline.trace.operations
    if not len(timeline.trace.calls):
        return np.full(len(operations), -1, dtype=np.int64)
    returned = timeline.trace.calls.end_ns[np.maximum(at, 0)]
    return np.where(at >= 0, np.minimum(returned, operations.start_ns), -1)


def _previous(stream: Ns) -> Ns:
    order = np.argsort(stream, kind="stable")
    found = np.full(len(stream), -1, dtype=np.int64)
    same = stream[order][1:] == stream[order][:-1]
    found[order[1:][same]] = order[:-1][same]
    return found


def _waits(timeline: RankTimeline) -> tuple[Ns, Ns, Ns]:
    """Waits of threads that launch: others, such as those that prefetch, hold nothing back."""
    trace, launched_by = timeline.trace, timeline.launched_by
    calls, operations = trace.calls, trace.operations
    threads = np.unique(calls.thread[launched_by[launched_by >= 0]])
    chosen = np.flatnonzero(waiting_calls(trace, launched_by) & np.isin(calls.thread, threads))
    chosen = chosen[np.argsort(calls.end_ns[chosen], kind="stable")]
    starts, ends = calls.start_ns[chosen], calls.end_ns[chosen]
    by_end = np.argsort(operations.end_ns, kind="stable")
    awaited = _last_ended(operations.end_ns, by_end, ends, side="right")
    # One of no length that begins as the wait ends is not what it waited for.
    late = np.flatnonzero(np.append(operations.start_ns, _NEVER)[awaited] >= ends)
    awaited[late] = _last_ended(operations.end_ns, by_end, ends[late], side="left")
    # A copy waits for itself.
    known = np.flatnonzero(launched_by >= 0)
    own = np.full(len(calls), -1, dtype=np.int64)
    own[launched_by[known]] = known
    copies = (calls.kind[chosen] == HostCallKind.COPY) & (own[chosen] >= 0)
    awaited = np.where(copies, own[chosen], awaited)
    found = (awaited >= 0) & (np.append(operations.start_ns, _NEVER)[awaited] < ends)
    return starts[found], ends[found], awaited[found]
