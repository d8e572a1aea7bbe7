"""Why nothing was on the GPU: the host had not launched, was waiting, or the launch was on its way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd.trace.model.intervals import Coverage, Flags, Indices, Ns
from perfd.trace.model.operation_kinds import HostCallKind
from perfd.trace.model.rank_trace import RankTrace

HOST_WAIT_NS = 100_000
"""A host that launches one kernel after the other leaves gaps of some microseconds. In a longer gap it did
something else: data loading, Python, a lock. (HolisticTraceAnalysis: over 100 µs is an outlier.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Why nothing was on the GPU. launch + sync + other = all idle time."""

    launch_s: float
    """The host had not launched the next operation yet, and was not waiting for the GPU."""
    sync_s: float
    """The host was waiting for the GPU, which had nothing to do: in a call for that, or in a copy."""
    other_s: float
    """The next operation was launched and had not begun: launch latency, or another stream's event."""
    host_s: float
    """The rest of `launch_s` in gaps with more than `HOST_WAIT_NS` of it: the host did something else."""
    after_sync_s: float
    """The part of `launch_s` that there would not be had the host not waited before: ADR 18."""
    paused_s: float
    """The part of `launch_s` in gaps with more than `HOST_WAIT_NS` of it: the host did something else, which
    running ahead may have hidden."""

    @property
    def unlaunched_s(self) -> float:
        """What earlier launching would have filled."""
        return self.launch_s - self.after_sync_s

    @property
    def synchronizing_s(self) -> float:
        """What fewer synchronizations would have filled; with `unlaunched_s` and `other_s` all idle time."""
        return self.sync_s + self.after_sync_s


class IdleTimes:
    """Explains the gaps between the operations of one rank."""

    def __init__(self, trace: RankTrace, busy: Coverage, launched_by: Indices) -> None:
        self._trace = trace
        self._busy = busy
        self._waiting = _waiting(trace, launched_by)
        self._launched_by = launched_by
        self._after_sync = self._lateness_by_waiting()

    def explain(self, start_ns: int, end_ns: int) -> Idle | None:
        """The idle time of one window; None when the trace has no host calls."""
        if not len(self._trace.calls):
            return None
        starts, ends = self._busy.gaps(start_ns, end_ns)
        waiting = self._waiting.covered_many_ns(starts, ends)
        until = self._launched_within(starts, ends, behind_ns=end_ns)
        unlaunched = (until - starts) - self._waiting.covered_many_ns(starts, until)
        other = (ends - starts) - waiting - unlaunched
        after_sync = np.minimum(self._after_sync.covered_many_ns(starts, until), unlaunched)
        late = unlaunched - after_sync
        return Idle(
            launch_s=_seconds(unlaunched),
            sync_s=_seconds(waiting),
            other_s=_seconds(other),
            host_s=_seconds(late[late > HOST_WAIT_NS]),
            after_sync_s=_seconds(after_sync),
            paused_s=_seconds(unlaunched[unlaunched > HOST_WAIT_NS]),
        )

    def _launched_within(self, starts: Ns, ends: Ns, *, behind_ns: int) -> Ns:
        """Until when in each gap the host had not launched what ends it."""
        # The operation that ends a gap is the first to start at or after its end; behind the last, nothing.
        following = np.searchsorted(self._trace.operations.start_ns, ends)
        count = len(self._launched_by)
        launched = np.full(len(following), behind_ns, dtype=np.int64)
        known = np.flatnonzero(following < count)
        launched[known] = launch_ends(self._trace, self._launched_by, following[known])
        return launched.clip(starts, ends)

    def _lateness_by_waiting(self) -> Coverage:
        """The ends of gaps that there would not be had the host never waited for the GPU.

        Without its waits the host is ahead by all the time that it had waited until then, and the GPU by the
        gaps that this has closed: a gap closes by what the host is ahead of the GPU. So with w_k waited
        before the launch that ends gap k, and u_k of the gap before that launch, closed in all are
        c_k = min(c_(k-1) + u_k, w_k).
        """
        operations = self._trace.operations
        if not len(operations):
            return Coverage.union()
        first_ns, last_ns = int(operations.start_ns[0]), int(operations.end_ns.max())
        starts, ends = self._busy.gaps(first_ns, last_ns)
        until = self._launched_within(starts, ends, behind_ns=last_ns)
        origin = np.full(len(until), first_ns)
        waited = self._waiting.covered_many_ns(origin, until)
        open_ = np.cumsum(until - starts)
        # The recursion as a running minimum.
        closed = open_ + np.minimum(np.minimum.accumulate(waited - open_), 0)
        # A gap closes by what the host waited in it, at least: that part is separate.
        closes = np.diff(closed, prepend=0) - self._waiting.covered_many_ns(starts, until)
        return Coverage(until - closes, until)


def _waiting(trace: RankTrace, launched_by: Indices) -> Coverage:
    """When the host waited for the GPU."""
    waits = waiting_calls(trace, launched_by)
    return Coverage(trace.calls.start_ns[waits], trace.calls.end_ns[waits])


def waiting_calls(trace: RankTrace, launched_by: Indices) -> Flags:
    """Calls in which the host waited: those for that, and copies that were done at their return.

    `cudaMemcpyAsync` to pageable memory, as in `tensor.cpu()`, returns when it is done, so after all work
    before it. (CUDA Runtime API, "API synchronization behavior".)
    """
    calls = trace.calls
    waits: Flags = calls.kind == HostCallKind.SYNCHRONIZE
    at = launched_by[launched_by >= 0]
    done = trace.operations.end_ns[launched_by >= 0] <= calls.end_ns[at]
    waits[at[done & (calls.kind[at] == HostCallKind.COPY)]] = True
    return waits


def launch_ends(trace: RankTrace, launched_by: Indices, operations: Ns) -> Ns:
    """When the calls that launched some operations returned; their own starts where that is unknown."""
    starts = trace.operations.start_ns[operations]
    if not len(trace.calls):
        return starts
    at = launched_by[operations]
    return np.where(at >= 0, np.minimum(trace.calls.end_ns[np.maximum(at, 0)], starts), starts)


def launching_call(trace: RankTrace) -> Indices:
    """The index of the host's call that launched each operation, -1 where that is not known."""
    calls = trace.calls
    launches = np.flatnonzero((calls.kind == HostCallKind.LAUNCH) | (calls.kind == HostCallKind.COPY))
    if not len(launches):
        return np.full(len(trace.operations), -1, dtype=np.int32)
    correlations = calls.correlation[launches]
    order = np.argsort(correlations, kind="stable")
    launches, correlations = launches[order], correlations[order]
    wanted = trace.operations.correlation
    position = np.minimum(np.searchsorted(correlations, wanted), len(correlations) - 1)
    found = np.where((correlations[position] == wanted) & (wanted > 0), launches[position], -1)
    # A capture may have many millions of operations, and has no 2**31 calls.
    return found.astype(np.int32)


def _seconds(durations_ns: Ns) -> float:
    return float(durations_ns.sum()) / 1e9
