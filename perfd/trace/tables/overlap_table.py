"""What overlaps each collective: matrix products, other compute, copies, or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from perfd.trace.breakdown import RankTimeline
from perfd.trace.breakdown.collective_instances import instances
from perfd.trace.model.intervals import Coverage
from perfd.trace.model.operation_kinds import OperationKind
from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.tables.trace_table import Cell, named, table_of_ranks


@table_of_ranks(
    "overlap",
    "Collectives, and what overlaps them",
    named(
        "rank group operation count total_s beside_matmul_ratio beside_compute_ratio "
        "exposed_ratio exposed_s hole_s next_class"
    ),
    missing="No trace has collectives.",
)
def overlap(trace: RankTrace) -> Iterator[tuple[Cell, ...]]:
    """By group and operation: how much of it compute hides, and the next compute kernel.

    `hole_s` is the time from the end of compute before or during a collective to the next compute kernel: the
    delay that a tensor-parallel all-reduce adds to the next product.
    """
    timeline = RankTimeline(trace)
    operations = trace.operations
    is_product = np.array([label == "matmul" for label in trace.classes], dtype=np.bool_)
    computes = operations.kind == OperationKind.COMPUTE
    products = computes & is_product[operations.name] if len(is_product) else computes
    beside_product = Coverage(operations.start_ns[products], operations.end_ns[products])
    starts, ends = operations.start_ns[computes], np.sort(operations.end_ns[computes])
    classes = operations.name[computes]
    groups: dict[tuple[str, str], list[int]] = {}
    following: dict[tuple[str, str], Counter[str]] = {}
    for one in instances(timeline):
        start, end = one.start_ns, one.start_ns + round(one.duration_s * 1e9)
        row = groups.setdefault((one.group, one.operation), [0, 0, 0, 0, 0, 0])
        row[0] += 1
        row[1] += end - start
        row[2] += beside_product.covered_ns(start, end)
        row[3] += timeline.compute.covered_ns(start, end)
        row[4] += end - start - timeline.compute_memory.covered_ns(start, end)
        at, before = int(np.searchsorted(starts, end)), int(np.searchsorted(ends, end)) - 1
        if at < len(starts):
            following.setdefault((one.group, one.operation), Counter())[trace.classes[classes[at]]] += 1
            row[5] += max(0, int(starts[at]) - max(start, int(ends[before]))) if before >= 0 else 0
    for key, sums in sorted(groups.items(), key=lambda one: -one[1][4]):
        count, total, product, compute, exposed, hole = sums
        shares = [value / total if total else None for value in (product, compute, exposed)]
        then = following[key].most_common(1)[0][0] if key in following else ""
        yield trace.rank, *key, count, total / 1e9, *shares, exposed / 1e9, hole / 1e9, then
