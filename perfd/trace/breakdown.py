"""Where the time of a rank went: unions of intervals, never sums over streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfd.trace.intervals import Coverage, Ns
from perfd.trace.model import Call, Kind, RankTrace, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Why nothing was on the GPU, in seconds."""

    launch_s: float
    """The host had not launched the next operation yet, and was not waiting for the GPU."""
    sync_s: float
    """The host was waiting for the GPU, which had nothing to do."""
    other_s: float
    """The next operation was launched and had not begun: launch latency, or another stream's event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """A window of one rank. compute + exposed memory + exposed communication + idle = span."""

    step: int | None
    span_s: float
    compute_s: float
    communication_s: float
    exposed_communication_s: float
    """Covered by neither compute nor memory operations."""
    memory_s: float
    exposed_memory_s: float
    """Not covered by compute."""
    overlap_ratio: float | None
    """Share of communication that compute covers; None without communication."""
    idle_s: float
    idle: Idle | None
    """None when the trace has no host calls to explain it by."""
    kernel_count: int


class RankTimeline:
    """The unions of one rank, made once and asked for many windows."""

    def __init__(self, trace: RankTrace) -> None:
        self._trace = trace
        operations = trace.operations
        by_kind = {
            kind: Coverage(
                operations.start_ns[operations.kind == kind], operations.end_ns[operations.kind == kind]
            )
            for kind in Kind
        }
        self.compute = by_kind[Kind.COMPUTE]
        self.communication = by_kind[Kind.COMMUNICATION]
        self.memory = by_kind[Kind.MEMORY]
        self._compute_memory = Coverage.union(self.compute, self.memory)
        self._compute_communication = Coverage.union(self.compute, self.communication)
        self.busy = Coverage.union(*by_kind.values())
        waiting = trace.calls.kind == Call.SYNCHRONIZE
        self._waiting = Coverage(trace.calls.start_ns[waiting], trace.calls.end_ns[waiting])
        self._launched_ns = _launch_ends(trace)

    def window(self) -> tuple[int, int] | None:
        """First start and last end of an operation, or None when there is none."""
        if not len(self.busy.starts_ns):
            return None
        return int(self.busy.starts_ns[0]), int(self.busy.ends_ns[-1])

    def breakdown(self, start_ns: int, end_ns: int, step: int | None = None) -> Breakdown:
        """Where the time of one window went."""

        def covered(coverage: Coverage) -> int:
            return coverage.covered_ns(start_ns, end_ns)

        # Whole nanoseconds until the end, so that the parts add up exactly.
        compute, communication, busy = covered(self.compute), covered(self.communication), covered(self.busy)
        compute_memory = covered(self._compute_memory)
        hidden = compute + communication - covered(self._compute_communication)
        operations = self._trace.operations
        begun = (operations.start_ns >= start_ns) & (operations.start_ns < end_ns)
        return Breakdown(
            step=step,
            span_s=(end_ns - start_ns) / 1e9,
            compute_s=compute / 1e9,
            communication_s=communication / 1e9,
            exposed_communication_s=(busy - compute_memory) / 1e9,
            memory_s=covered(self.memory) / 1e9,
            exposed_memory_s=(compute_memory - compute) / 1e9,
            overlap_ratio=hidden / communication if communication > 0 else None,
            idle_s=(end_ns - start_ns - busy) / 1e9,
            idle=self._explain_idle(start_ns, end_ns),
            kernel_count=int(np.count_nonzero(begun & (operations.kind != Kind.MEMORY))),
        )

    def _explain_idle(self, start_ns: int, end_ns: int) -> Idle | None:
        if not len(self._trace.calls):
            return None
        gap_starts, gap_ends = self.busy.gaps(start_ns, end_ns)
        waiting = self._waiting.covered_many_ns(gap_starts, gap_ends)
        # The operation that ends a gap is the first to start at or after its end; behind the last, nothing.
        following = np.searchsorted(self._trace.operations.start_ns, gap_ends)
        launched = np.append(self._launched_ns, end_ns)[following]
        until = np.clip(launched, gap_starts, gap_ends)
        unlaunched = (until - gap_starts) - self._waiting.covered_many_ns(gap_starts, until)
        gaps = gap_ends - gap_starts
        return Idle(
            launch_s=float(unlaunched.sum()) / 1e9,
            sync_s=float(waiting.sum()) / 1e9,
            other_s=float((gaps - waiting - unlaunched).sum()) / 1e9,
        )


def _launch_ends(trace: RankTrace) -> Ns:
    """When the host's call that launched each operation returned; its own start where that is not known."""
    launches = trace.calls.kind == Call.LAUNCH
    correlations = trace.calls.correlation[launches]
    order = np.argsort(correlations, kind="stable")
    correlations, ends = correlations[order], trace.calls.end_ns[launches][order]
    starts = trace.operations.start_ns
    if not len(correlations):
        return starts
    position = np.minimum(np.searchsorted(correlations, trace.operations.correlation), len(correlations) - 1)
    found = (correlations[position] == trace.operations.correlation) & (trace.operations.correlation >= 0)
    return np.where(found, np.minimum(ends[position], starts), starts)


def whole_steps(steps: Sequence[Step], window: tuple[int, int]) -> list[Step]:
    """The steps that lie within what was captured: cut ones at either end say nothing."""
    return [step for step in steps if step.start_ns >= window[0] and step.end_ns <= window[1]]
