"""Which CUDA graphs ran, where they could replace single launches, what prevents it, and the gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from perfd.formatting import percent
from perfd.trace.breakdown import GraphUse, RankTimeline, graph_launches, graph_use
from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.tables.distribution import COLUMNS, distributions
from perfd.trace.tables.trace_table import Cell, TraceTable, named, table_of_ranks

_ALL_IN_GRAPHS = 0.99
"""Share of launches in graphs: nothing is left to gain."""


def graphs(traces: Sequence[RankTrace]) -> TraceTable:
    """One row for each rank with launches."""
    return TraceTable(
        name="graphs",
        title="What CUDA graphs could replace, and what prevents it",
        columns=named(
            "rank in_graphs_ratio repeats_count operations_count same_ratio waits_count reads_count "
            "launch_gap_s gain_s gain_ratio prevented_by"
        ),
        rows=sorted(_rows(traces), key=lambda row: -float(row[8] or 0)),
        missing="No trace has the host's launches.",
    )


@table_of_ranks(
    "graph-launches",
    "CUDA graphs that ran, each launch from its first to its last operation",
    (*named("rank graph nodes_count"), *COLUMNS, *named("busy_ratio")),
    missing="No trace has a CUDA graph.",
)
def launches(trace: RankTrace) -> Iterator[tuple[Cell, ...]]:
    """One row for each graph of each rank."""
    timeline = RankTimeline(trace)
    found = graph_launches(timeline)
    graph = np.repeat(np.arange(len(found)), [len(one.span_ns) for one in found])
    spans_ns = np.array([span_ns for one in found for span_ns in one.span_ns], dtype=np.int64)
    for spread in distributions(graph, spans_ns):
        one = found[spread.group]
        window_ns = timeline.window.end_ns - timeline.window.start_ns
        busy_ratio = one.busy_ns / spread.total_ns if spread.total_ns else None
        yield (trace.rank, one.name, one.nodes_count, *spread.cells(window_ns), busy_ratio)


def _rows(traces: Sequence[RankTrace]) -> Iterator[tuple[Cell, ...]]:
    for trace in traces:
        timeline = RankTimeline(trace)
        use = graph_use(timeline)
        if use is None:
            continue
        window = timeline.window
        yield (
            trace.rank,
            use.in_graphs_ratio,
            use.repeats_count,
            use.sequence_count,
            use.same_ratio,
            use.waits_count,
            use.reads_count,
            use.launch_gap_s,
            use.gain_s,
            use.gain_s * 1e9 / (window.end_ns - window.start_ns),
            "; ".join(obstacles(use, timeline)),
        )


def obstacles(use: GraphUse, timeline: RankTimeline) -> Iterator[str]:
    """What prevents one graph per repetition, in words; nothing if nothing does."""
    if use.in_graphs_ratio > _ALL_IN_GRAPHS:
        yield "graphs launch it already"
        return
    if not use.repeats:
        yield "no sequence of operations repeats three times"
    elif timeline.window.steps and use.same_ratio < 1:
        yield f"{percent(1 - use.same_ratio)} of the steps differ from the step before"
    if use.reads_count:
        yield f"{use.reads_count} waits for copies to the host"
    if use.waits_count > use.reads_count:
        yield f"{use.waits_count - use.reads_count} other waits for the GPU"
