"""All tables by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.tables import call_tables, operation_tables, operator_tables, range_tables, stream_tables
from perfd.trace.tables.trace_table import TraceTable

TABLES: Mapping[str, Callable[[Sequence[RankTrace]], TraceTable]] = {
    "kernels": operation_tables.kernels,
    "shapes": operation_tables.shapes,
    "copies": operation_tables.copies,
    "copy-sizes": operation_tables.copy_sizes,
    "api": call_tables.api,
    "os": call_tables.os_calls,
    "launches": call_tables.launches,
    "streams": stream_tables.streams,
    "queue": stream_tables.queue,
    "idle": stream_tables.idle,
    "operators": operator_tables.operators,
    "lines": operator_tables.lines,
    "ranges": range_tables.ranges,
}


def tables_of(traces: Sequence[RankTrace], names: Sequence[str]) -> list[TraceTable]:
    """The tables of these names, of traces that were read with `detailed`."""
    return [TABLES[name](traces) for name in names]
