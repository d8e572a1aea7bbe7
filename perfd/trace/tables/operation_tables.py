"""What ran on the GPUs: kernels, launch shapes, copies."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from perfd.formatting import data_size
from perfd.trace.model.kernel_classes import uses_tensor_cores
from perfd.trace.model.operation_kinds import OperationKind
from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.tables.distribution import COLUMNS, distributions
from perfd.trace.tables.trace_table import Cell, TraceTable, named, table_of_ranks

_SIZE_LIMITS = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
"""Bounds between classes of copies: latency counts below the first, bandwidth above the last."""

_PERSISTENT = re.compile(r"persistent", re.IGNORECASE)


@table_of_ranks("kernels", "Kernels", (*named("rank kernel class tensor_cores"), *COLUMNS))
def kernels(trace: RankTrace) -> Iterator[tuple[Cell, ...]]:
    """By name: how often, how long, and how the durations are spread."""
    operations = trace.operations
    chosen = operations.kind != OperationKind.MEMORY
    durations = (operations.end_ns - operations.start_ns)[chosen]
    total_ns = int(durations.sum())
    for one in distributions(operations.name[chosen].astype(np.int64), durations):
        name = trace.names[one.group]
        tensor_cores = "yes" if uses_tensor_cores(name) else ""
        yield trace.rank, name, trace.classes[one.group], tensor_cores, *one.cells(total_ns)


@table_of_ranks(
    "shapes",
    "Kernels by blocks and threads",
    (*named("rank kernel blocks threads persistent"), *COLUMNS),
    missing="No trace has the shapes of launches.",
)
def shapes(trace: RankTrace) -> Iterator[tuple[Cell, ...]]:
    """Kernels by name, blocks and threads."""
    detail, operations = trace.detail, trace.operations
    if detail is None:
        return
    chosen = (detail.launch_shape >= 0) & (operations.kind != OperationKind.MEMORY)
    durations = (operations.end_ns - operations.start_ns)[chosen]
    count = max(1, len(detail.launch_shapes))
    groups = operations.name[chosen].astype(np.int64) * count + detail.launch_shape[chosen]
    total_ns = int(durations.sum())
    for one in distributions(groups, durations):
        name, shape = divmod(one.group, count)
        blocks, _, threads = detail.launch_shapes[shape].partition(" ")
        persistent = _persistence(trace.names[name], blocks, detail.multiprocessors)
        yield trace.rank, trace.names[name], blocks, threads, persistent, *one.cells(total_ns)


def _persistence(name: str, blocks: str, multiprocessors: int | None) -> str:
    """Why a kernel looks persistent: its blocks stay on the SMs and process one tile after another."""
    if _PERSISTENT.search(name):
        return "name"
    count = math.prod(int(one) for one in blocks.split("x") if one.isdecimal())
    return "one block per SM" if multiprocessors and count == multiprocessors else ""


def copies(traces: Sequence[RankTrace]) -> TraceTable:
    """Copies and fills by direction: time, sizes and bandwidth."""
    return _copies(traces, name="copies", title="Copies and fills by direction", by_size=False)


def copy_sizes(traces: Sequence[RankTrace]) -> TraceTable:
    """The same by direction and size."""
    return _copies(traces, name="copy-sizes", title="Copies and fills by direction and size", by_size=True)


def _copies(traces: Sequence[RankTrace], *, name: str, title: str, by_size: bool) -> TraceTable:
    return TraceTable(
        name=name,
        title=title,
        columns=(
            *named("rank operation sizes" if by_size else "rank operation"),
            *COLUMNS,
            *named("size_bytes mean_bytes median_bytes min_bytes max_bytes bytes_per_s"),
        ),
        rows=[row for trace in traces for row in _copy_rows(trace, by_size)],
        missing="No copy and no fill is in the trace.",
    )


def _copy_rows(trace: RankTrace, by_size: bool) -> Iterator[tuple[Cell, ...]]:
    operations = trace.operations
    chosen = operations.kind == OperationKind.MEMORY
    size = trace.detail.size_bytes[chosen] if trace.detail else np.full(int(chosen.sum()), -1)
    durations = (operations.end_ns - operations.start_ns)[chosen]
    classes = np.searchsorted(_SIZE_LIMITS, size, side="right") if by_size else np.zeros(len(size), dtype=int)
    groups = operations.name[chosen].astype(np.int64) * (len(_SIZE_LIMITS) + 1) + classes
    total_ns = int(durations.sum())
    for one in distributions(groups, durations):
        name, size_class = divmod(one.group, len(_SIZE_LIMITS) + 1)
        mine = size[groups == one.group]
        known = mine[mine >= 0]
        numbers: tuple[Cell, ...] = (None,) * 6
        if len(known) == len(mine):
            total = int(known.sum())
            numbers = (
                total,
                float(known.mean()),
                float(np.median(known)),
                int(known.min()),
                int(known.max()),
                total / (one.total_ns / 1e9) if one.total_ns else None,
            )
        words = [_size_words(size_class)] if by_size else []
        yield trace.rank, trace.names[name], *words, *one.cells(total_ns), *numbers


def _size_words(size_class: int) -> str:
    if size_class == 0:
        return f"under {data_size(_SIZE_LIMITS[0])}"
    return f"from {data_size(_SIZE_LIMITS[size_class - 1])}"
