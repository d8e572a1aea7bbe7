"""Where the time of a rank went: unions of intervals, never sums over streams.

GPU records are missing where launches have no kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfd.thresholds import THRESHOLDS
from perfd.trace.breakdown.idle_time import Idle, IdleTimes, launching_call
from perfd.trace.model.intervals import Coverage, Flags, Ns
from perfd.trace.model.operation_kinds import HostCallKind, OperationKind
from perfd.trace.model.rank_trace import HostCalls, RankTrace
from perfd.trace.model.trace_steps import TraceStep, whole_among


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRecords:
    """What a rank's host launched and its GPU's records do not show."""

    launches: int
    """Launches of kernels and graphs that ought to have a record."""
    lost: int

    @property
    def ratio(self) -> float:
        """Share of launches without a record."""
        return self.lost / self.launches if self.launches else 0.0


def losses(trace: RankTrace) -> MissingRecords | None:
    """Launches that should have a record and those without; None if unknown.

    Launches into a graph put nothing on the GPU. At the end of a capture the last launches are in flight,
    so only those up to the last one with a record count.
    """
    calls, known = trace.calls, trace.operations.correlation
    launches = (calls.kind == HostCallKind.LAUNCH) & (calls.correlation > 0) & ~_into_graphs(calls)
    if not launches.any() or not (known > 0).any():
        return None
    recorded = _are_among(calls.correlation[launches], known)
    if not recorded.any():
        copies = calls.correlation[(calls.kind == HostCallKind.COPY) & (calls.correlation > 0)]
        # Numbers that never match are not of one kind: nothing can be said. When copies do, kernels are gone.
        matched = bool(_are_among(copies, known).any())
        return MissingRecords(launches=len(recorded), lost=len(recorded)) if matched else None
    settled = recorded[: int(np.flatnonzero(recorded)[-1]) + 1]
    return MissingRecords(launches=len(settled), lost=int((~settled).sum()))


def _are_among(values: Ns, known: Ns) -> Flags:
    """Which values are among those known, of which there is one at least."""
    # Not numpy.isin, which loads numpy.ma for a plain question: that alone takes 10 ms.
    known = np.sort(known)
    found: Flags = known[np.minimum(np.searchsorted(known, values), len(known) - 1)] == values
    return found


def _into_graphs(calls: HostCalls) -> Flags:
    """Which calls were made while their thread captured a graph."""
    into: Flags = np.zeros(len(calls), dtype=np.bool_)
    marks = (calls.kind == HostCallKind.CAPTURE_BEGIN) | (calls.kind == HostCallKind.CAPTURE_END)
    for thread in sorted(set(calls.thread[marks].tolist())):
        mine = calls.thread == thread
        begins = calls.start_ns[mine & (calls.kind == HostCallKind.CAPTURE_BEGIN)]
        ends = calls.end_ns[mine & (calls.kind == HostCallKind.CAPTURE_END)]
        # A capture without its end is still on; an end without its begin began before the trace.
        later = np.append(ends, np.iinfo(np.int64).max)
        graphs = Coverage(begins, later[np.searchsorted(ends, begins)])
        at = np.flatnonzero(mine)
        into[at] = graphs.covered_many_ns(calls.start_ns[at], calls.start_ns[at] + 1) > 0
    return into


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBreakdown:
    """A window of one rank. compute + exposed memory + exposed communication + idle = span."""

    step: int | None
    span_s: float
    compute_s: float
    communication_s: float
    exposed_communication_s: float
    """Covered by neither compute nor memory operations, by the existing records."""
    memory_s: float
    exposed_memory_s: float
    """Not covered by compute, by the existing records."""
    overlap_ratio: float | None
    """Share of communication that compute covers; None without communication.

    What memory operations alone cover is neither this nor exposed.
    """
    idle_s: float | None
    """None when too many records are missing."""
    idle: Idle | None
    """None when the trace has no host calls to explain it by."""
    uncovered_s: float
    """What no record covers: idle, when no record is missing."""
    kernel_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceWindow:
    """What of a rank's trace is judged."""

    start_ns: int
    end_ns: int
    source: str
    """`steps`, or `operations` where the trace marks no whole step."""
    steps: tuple[TraceStep, ...] = ()
    """The whole ones."""
    dropped_steps: tuple[int, ...] = ()
    """Steps that the capture cut."""


class RankTimeline:
    """The unions of one rank, made once and asked for many windows."""

    def __init__(self, trace: RankTrace) -> None:
        self.trace = trace
        self.losses: MissingRecords | None = losses(trace)
        operations = trace.operations
        self.compute, self.communication, self.memory = (
            Coverage(operations.start_ns[operations.kind == kind], operations.end_ns[operations.kind == kind])
            for kind in (OperationKind.COMPUTE, OperationKind.COMMUNICATION, OperationKind.MEMORY)
        )
        self.compute_memory = Coverage.union(self.compute, self.memory)
        self.busy = Coverage.union(self.compute_memory, self.communication)
        self.window = _window(trace)
        self.launched_by = launching_call(trace)
        """The index of the host's call that launched each operation, -1 where that is not known."""
        self._idle = IdleTimes(trace, self.busy, self.launched_by)

    @property
    def complete(self) -> bool:
        """Whether no records of this GPU are known to be missing."""
        return self.losses is None or self.losses.ratio <= THRESHOLDS.trace_lost_records_ratio

    @property
    def late_ratio(self) -> float:
        """The share of the GPU's work that came after the host had marked the end of its last step."""
        if not self.trace.steps:
            return 0.0
        operations = self.trace.operations
        first, last = int(operations.start_ns[0]), int(operations.end_ns.max())
        marked = max(step.end_ns for step in self.trace.steps)
        busy_ns = self.busy.covered_ns(first, last)
        return self.busy.covered_ns(max(first, marked), last) / busy_ns if busy_ns else 0.0

    def whole(self) -> RankBreakdown:
        """Where the time of the whole window went."""
        return self.breakdown(self.window.start_ns, self.window.end_ns)

    def by_step(self) -> list[RankBreakdown]:
        """The same for each whole step."""
        return [self.breakdown(step.start_ns, step.end_ns, step.number) for step in self.window.steps]

    def breakdown(self, start_ns: int, end_ns: int, step: int | None = None) -> RankBreakdown:
        """Where the time of one window went."""

        def covered(coverage: Coverage) -> int:
            return coverage.covered_ns(start_ns, end_ns)

        # Whole nanoseconds until the end, so that the parts add up exactly.
        compute, communication, busy = covered(self.compute), covered(self.communication), covered(self.busy)
        compute_memory = covered(self.compute_memory)
        hidden = self._hidden_communication_ns(start_ns, end_ns)
        complete = self.complete
        return RankBreakdown(
            step=step,
            span_s=(end_ns - start_ns) / 1e9,
            compute_s=compute / 1e9,
            communication_s=communication / 1e9,
            exposed_communication_s=(busy - compute_memory) / 1e9,
            memory_s=covered(self.memory) / 1e9,
            exposed_memory_s=(compute_memory - compute) / 1e9,
            overlap_ratio=hidden / communication if communication > 0 else None,
            idle_s=(end_ns - start_ns - busy) / 1e9 if complete else None,
            idle=self._idle.explain(start_ns, end_ns) if complete else None,
            uncovered_s=(end_ns - start_ns - busy) / 1e9,
            kernel_count=self._kernels(start_ns, end_ns),
        )

    def _hidden_communication_ns(self, start_ns: int, end_ns: int) -> int:
        """Communication that compute covers, by its pieces: a union of both has as many as compute."""
        first, last = self.communication.pieces(start_ns, end_ns)
        starts = self.communication.starts_ns[first:last].clip(start_ns, end_ns)
        ends = self.communication.ends_of(first, last).clip(start_ns, end_ns)
        return int(self.compute.covered_many_ns(starts, ends).sum())

    def _kernels(self, start_ns: int, end_ns: int) -> int:
        first, last = np.searchsorted(self.trace.operations.start_ns, (start_ns, end_ns))
        return int(np.count_nonzero(self.trace.operations.kind[first:last] != OperationKind.MEMORY))


def _window(trace: RankTrace) -> TraceWindow:
    """From the first to the last whole step, else from the first to the last operation."""
    whole = whole_among(trace.steps, trace.captured_ns, trace.recorded_from_ns)
    if whole:
        numbers = {step.number for step in whole}
        return TraceWindow(
            start_ns=min(step.start_ns for step in whole),
            end_ns=max(step.end_ns for step in whole),
            source="steps",
            steps=tuple(whole),
            dropped_steps=tuple(step.number for step in trace.steps if step.number not in numbers),
        )
    operations = trace.operations
    return TraceWindow(
        start_ns=int(operations.start_ns[0]),
        end_ns=int(operations.end_ns.max()),
        source="operations",
        dropped_steps=tuple(step.number for step in trace.steps),
    )
