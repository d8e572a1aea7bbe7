"""All tables by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.tables import (
    call_tables,
    critical_path_tables,
    cuda_graph_table,
    decode_table,
    layer_table,
    operation_tables,
    operator_tables,
    overlap_table,
    range_tables,
    stream_tables,
    timeline_table,
)
from perfd.trace.tables.trace_table import TraceTable

TABLES: Mapping[str, Callable[[Sequence[RankTrace]], TraceTable]] = {
    "kernels": operation_tables.kernels,
    "shapes": operation_tables.shapes,
    "copies": operation_tables.copies,
    "copy-sizes": operation_tables.copy_sizes,
    "api": call_tables.api,
    "os": call_tables.os_calls,
    "libraries": call_tables.library_calls,
    "launches": call_tables.launches,
    "streams": stream_tables.streams,
    "queue": stream_tables.queue,
    "idle": stream_tables.idle,
    "graphs": cuda_graph_table.graphs,
    "graph-launches": cuda_graph_table.launches,
    "operators": operator_tables.operators,
    "lines": operator_tables.lines,
    "modules": operator_tables.modules,
    "functions": operator_tables.functions,
    "ranges": range_tables.ranges,
    "timeline": timeline_table.timeline,
    "layers": layer_table.layers,
    "overlap": overlap_table.overlap,
    "decode-gaps": decode_table.decode_gaps,
    "critical-path": critical_path_tables.critical_path_parts,
    "path-gains": critical_path_tables.gains,
}


_WITH_SPANS = frozenset({"operators", "lines", "modules", "functions", "critical-path"})


def needs_spans(names: Sequence[str]) -> bool:
    """Whether one of the tables is of what PyTorch's profiler recorded of the host's own operators."""
    return not _WITH_SPANS.isdisjoint(names)


def tables_of(
    traces: Sequence[RankTrace], names: Sequence[str], in_range: str | None = None
) -> list[TraceTable]:
    """The named tables, for traces that were read with `detailed`, and with `spans` if they need them.

    `in_range` restricts them to work launched in ranges that match a shell pattern, such as `my_decode_*`.
    """
    if in_range is not None:
        traces = [timeline_table.within_ranges(trace, in_range) for trace in traces]
        traces = [trace for trace in traces if len(trace.operations)]
    return [TABLES[name](traces) for name in names]
