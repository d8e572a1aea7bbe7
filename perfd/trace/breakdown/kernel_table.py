"""Which operations took the time, by name, and how the host launched them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfd.trace.breakdown.rank_breakdown import RankTimeline
from perfd.trace.model.intervals import Coverage, Ns
from perfd.trace.model.kernel_classes import uses_tensor_cores
from perfd.trace.model.operation_kinds import OperationKind


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """All operations of one name in the window."""

    name: str
    kernel_class: str
    count: int
    """Those that began in the window."""
    total_s: float
    """Sum of their durations, clipped to the window."""
    path_s: float
    """Time that is put down to them when each instant counts once: compute before copies before
    communication, and of several at once the one that began first. Sums to the busy time."""
    tensor_cores: bool
    """Whether the name says that it uses them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCost:
    """How the host launched what ran in the window. None where nothing could be matched."""

    count: int
    """Launches of kernels, copies and fills that could be matched with what they launched."""
    call_s: float | None
    """Median duration of the call."""
    queue_s: float | None
    """Median time from the call's return to the begin of the operation; near zero when the GPU waits."""
    short_kernel_ratio: float | None
    """Share of kernels that are shorter than their launch."""


def kernel_rows(timeline: RankTimeline) -> list[KernelRow]:
    """One row a name, the longest first."""
    operations, window = timeline.trace.operations, timeline.window
    starts = np.clip(operations.start_ns, window.start_ns, window.end_ns)
    ends = np.clip(operations.end_ns, window.start_ns, window.end_ns)
    begun = (operations.start_ns >= window.start_ns) & (operations.start_ns < window.end_ns)
    size = len(timeline.trace.names)
    counts = np.bincount(operations.name[begun], minlength=size)
    total = np.bincount(operations.name, weights=(ends - starts), minlength=size)
    path = np.bincount(operations.name, weights=_own_time(timeline, starts, ends), minlength=size)
    rows = [
        KernelRow(
            name=timeline.trace.names[at],
            kernel_class=timeline.trace.classes[at],
            count=int(counts[at]),
            total_s=float(total[at]) / 1e9,
            path_s=float(path[at]) / 1e9,
            tensor_cores=uses_tensor_cores(timeline.trace.names[at]),
        )
        for at in np.flatnonzero((total > 0) | (counts > 0)).tolist()
    ]
    return sorted(rows, key=lambda row: (-row.total_s, row.name))


def launch_cost(timeline: RankTimeline) -> LaunchCost | None:
    """How the host launched; None when the trace has no host calls."""
    trace, window = timeline.trace, timeline.window
    if not len(trace.calls):
        return None
    at = timeline.launched_by
    starts = trace.operations.start_ns
    known = (at >= 0) & (starts >= window.start_ns) & (starts < window.end_ns)
    if not known.any():
        return LaunchCost(count=0, call_s=None, queue_s=None, short_kernel_ratio=None)
    calls = at[known]
    call_ns = trace.calls.end_ns[calls] - trace.calls.start_ns[calls]
    queue_ns = np.maximum(starts[known] - trace.calls.end_ns[calls], 0)
    kernels = trace.operations.kind[known] == OperationKind.COMPUTE
    run_ns = (trace.operations.end_ns - starts)[known]
    return LaunchCost(
        count=int(known.sum()),
        call_s=float(np.median(call_ns)) / 1e9,
        queue_s=float(np.median(queue_ns)) / 1e9,
        short_kernel_ratio=float(np.mean(run_ns[kernels] < call_ns[kernels])) if kernels.any() else None,
    )


def busy_by_class(rows: Sequence[KernelRow]) -> dict[str, float]:
    """Seconds on the path by class, the longest first."""
    total: dict[str, float] = {}
    for row in rows:
        total[row.kernel_class] = total.get(row.kernel_class, 0.0) + row.path_s
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def _own_time(timeline: RankTimeline, starts: Ns, ends: Ns) -> Ns:
    """How much of each operation is its own when each instant counts once."""
    own = np.zeros(len(starts), dtype=np.int64)
    kinds = timeline.trace.operations.kind
    hidden_by: Coverage | None = None
    for kind, above in (
        (OperationKind.COMPUTE, timeline.compute),
        (OperationKind.MEMORY, timeline.compute_memory),
        (OperationKind.COMMUNICATION, None),
    ):
        mine = np.flatnonzero(kinds == kind)
        if len(mine):
            own[mine] = _unshared(starts[mine], ends[mine], hidden_by)
        hidden_by = above
    return own


def _unshared(starts: Ns, ends: Ns, hidden_by: Coverage | None) -> Ns:
    """What of each interval, in order of start, neither an earlier one nor `hidden_by` covers."""
    reached = np.concatenate((starts[:1], np.maximum.accumulate(ends)[:-1]))
    begin = np.minimum(np.maximum(starts, reached), ends)
    length: Ns = ends - begin
    return length if hidden_by is None else length - hidden_by.covered_many_ns(begin, ends)
