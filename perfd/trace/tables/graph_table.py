"""Where CUDA graphs could replace single launches, what prevents it, and the estimated gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfd.formatting import percent
from perfd.trace.breakdown import GraphUse, RankTimeline, graph_use
from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.tables.trace_table import RANK, Cell, TableColumn, TraceTable

_ALL_IN_GRAPHS = 0.99
"""Share of launches in graphs: nothing is left to gain."""


def graphs(traces: Sequence[RankTrace]) -> TraceTable:
    """One row for each rank with launches."""
    return TraceTable(
        name="graphs",
        title="What CUDA graphs could replace, and what prevents it",
        columns=(
            RANK,
            TableColumn("in_graphs_ratio", "ratio"),
            TableColumn("repeats_count", "count"),
            TableColumn("operations_count", "count"),
            TableColumn("same_ratio", "ratio"),
            TableColumn("waits_count", "count"),
            TableColumn("reads_count", "count"),
            TableColumn("launch_gap_s", "s"),
            TableColumn("gain_s", "s"),
            TableColumn("gain_ratio", "ratio"),
            TableColumn("prevented_by"),
        ),
        rows=sorted(_rows(traces), key=lambda row: -float(row[8] or 0)),
        missing="No trace has the host's launches.",
    )


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
