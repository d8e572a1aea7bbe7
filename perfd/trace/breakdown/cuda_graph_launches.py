"""CUDA graphs that a rank launched: which, how often, of how many nodes, and how long they took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from perfd.trace.breakdown.rank_breakdown import RankTimeline
from perfd.trace.model.intervals import Flags, Indices
from perfd.trace.model.rank_trace import RankTrace

GRAPH = "graph"
"""The class of a graph that the profiler recorded as a whole."""


@dataclass(slots=True, kw_only=True)
class GraphLaunches:
    """All launches of one graph on a rank."""

    name: str
    nodes_count: int | None
    """Operations on the GPU per launch; None if the trace has graphs as a whole."""
    span_ns: list[int] = field(default_factory=list)
    """Of each launch, from the start of its first operation to the end of its last."""
    busy_ns: int = 0
    """Sum over the operations of all launches."""


def launched_by_graphs(timeline: RankTimeline) -> Flags:
    """Which operations of a rank graphs launched, or are graphs."""
    trace, at = timeline.trace, timeline.launched_by
    by_graph = np.array(["GraphLaunch" in name for name in trace.call_names], dtype=np.bool_)
    whole = np.array([name == GRAPH for name in trace.classes], dtype=np.bool_)[trace.operations.name]
    return whole | ((at >= 0) & by_graph[trace.calls.name[at]]) if len(by_graph) else whole


def graph_launches(timeline: RankTimeline) -> Sequence[GraphLaunches]:
    """By graph, in order of their first launches.

    Graphs whose nodes the trace shows are the same if they run the same operations in the same order.
    """
    trace, at = timeline.trace, timeline.launched_by
    operations = trace.operations
    found: dict[bytes, GraphLaunches] = {}
    chosen = np.flatnonzero(launched_by_graphs(timeline))
    chosen = chosen[np.argsort(at[chosen], kind="stable")]
    whole = np.array([name == GRAPH for name in trace.classes], dtype=np.bool_)[operations.name[chosen]]
    # A graph as a whole is a launch by itself, also where the trace does not say which call launched it.
    begins = np.flatnonzero(np.append(True, (at[chosen[1:]] != at[chosen[:-1]]) | whole[1:] | whole[:-1]))
    for rows in np.split(chosen, begins[1:]) if len(chosen) else ():
        names = operations.name[rows]
        opaque = trace.classes[names[0]] == GRAPH
        one = found.setdefault(
            names.tobytes(),
            GraphLaunches(
                name=_name(trace, names),
                nodes_count=None if opaque else len(rows),
            ),
        )
        one.span_ns.append(int(operations.end_ns[rows].max() - operations.start_ns[rows].min()))
        one.busy_ns += int((operations.end_ns[rows] - operations.start_ns[rows]).sum())
    return list(found.values())


def _name(trace: RankTrace, names: Indices) -> str:
    """What the profiler calls a graph, else its first operation."""
    first = trace.names[names[0]]
    return first if trace.classes[names[0]] == GRAPH else f"from {first}"
