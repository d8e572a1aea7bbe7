"""Time in the host's Python functions, counted as cProfile does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfd.trace.model.host_spans import HostSpans, SpanKind
from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.tables.trace_table import Cell, named, table_of_ranks


@table_of_ranks(
    "functions",
    "Python functions",
    named("rank function calls_count total_s total_ratio self_s call_s"),
    missing="No trace has Python functions: record with PyTorch's profiler and with_stack=True.",
)
def functions(trace: RankTrace) -> Iterator[tuple[Cell, ...]]:
    """By function: calls, own time, and time including callees; recursion counts once."""
    spans = trace.detail.spans if trace.detail else None
    if spans is None or not len(spans):
        return
    chosen = spans.are(SpanKind.FUNCTION)
    if not chosen.any():
        return
    nearest = spans.nearest(chosen)
    parent = np.where(spans.parent >= 0, nearest[spans.parent], -1)
    length = spans.end_ns - spans.start_ns
    nested = chosen & (parent >= 0)
    own = length - np.bincount(parent[nested], weights=length[nested], minlength=len(spans)).astype(np.int64)
    # All time in Python: what no function is around.
    whole_ns = int(length[chosen & (parent < 0)].sum()) or 1
    sums: dict[int, list[int]] = {}
    for at in np.flatnonzero(chosen).tolist():
        row = sums.setdefault(int(spans.label[at]), [0, 0, 0])
        row[0] += 1
        row[1] += 0 if _is_recursive(spans, at, parent[at]) else int(length[at])
        row[2] += int(own[at])
    for label, (calls, total_ns, own_ns) in sorted(sums.items(), key=lambda one: -one[1][1]):
        name = spans.labels[label].name
        yield (
            trace.rank,
            name,
            calls,
            total_ns / 1e9,
            total_ns / whole_ns,
            own_ns / 1e9,
            total_ns / calls / 1e9,
        )


def _is_recursive(spans: HostSpans, at: int, parent: int) -> bool:
    """Whether the same function is around it."""
    wanted = spans.label[at]
    return parent >= 0 and any(spans.label[one] == wanted for one in spans.around(int(parent)))
