"""Tables of a trace, as engineers know them from `nsys stats` and HolisticTraceAnalysis."""

from perfd.trace.tables.all_tables import TABLES, needs_spans, tables_of
from perfd.trace.tables.trace_table import Cell, TraceTable

__all__ = ["TABLES", "Cell", "TraceTable", "needs_spans", "tables_of"]
