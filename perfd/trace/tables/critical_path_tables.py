"""The critical path of a capture: the work on it, and the gain from saving it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perfd.trace.breakdown import Collectives, CriticalPath, RankTimeline, collectives, critical_path
from perfd.trace.breakdown.critical_path_gains import path_gains
from perfd.trace.model.host_spans import SpanKind
from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.tables.operator_tables import launching_spans
from perfd.trace.tables.trace_table import Cell, TraceTable, named

_MISSING = "No rank has all its GPU records."


def critical_path_parts(traces: Sequence[RankTrace]) -> TraceTable:
    """Time on the path by rank, class, operator and name."""
    found = _path(traces)
    return TraceTable(
        name="critical-path",
        title="Critical path across all ranks",
        columns=named("rank class operator name count path_s share_ratio"),
        rows=_part_rows(found[1], found[2]) if found else [],
        missing=_MISSING,
    )


def gains(traces: Sequence[RankTrace]) -> TraceTable:
    """How much earlier the capture would end without a class of work on its path."""
    found = _path(traces)
    return TraceTable(
        name="path-gains",
        title="Gain if a class of work on the critical path took no time",
        columns=named("class path_s share_ratio gain_s gain_ratio"),
        rows=_gain_rows(*found) if found else [],
        missing=_MISSING,
    )


def _path(
    traces: Sequence[RankTrace],
) -> tuple[Collectives, Mapping[int, RankTimeline], CriticalPath] | None:
    timelines = {trace.rank: RankTimeline(trace) for trace in traces if trace.rank is not None}
    together = collectives(timelines)
    path = critical_path(timelines, together)
    return None if path is None or not path.length_s else (together, timelines, path)


def _part_rows(timelines: Mapping[int, RankTimeline], path: CriticalPath) -> list[tuple[Cell, ...]]:
    sums: dict[tuple[int, str, str, str], list[float]] = {}
    for rank, part_class, operator, name, count, total_s in _pieces(timelines, path):
        row = sums.setdefault((rank, part_class, operator, name), [0, 0.0])
        row[0] += count
        row[1] += total_s
    costly = sorted(sums.items(), key=lambda item: -item[1][1])
    return [(*key, int(count), total_s, total_s / path.length_s) for key, (count, total_s) in costly]


def _pieces(
    timelines: Mapping[int, RankTimeline], path: CriticalPath
) -> Iterator[tuple[int, str, str, str, int, float]]:
    for rank, found in path.segments.items():
        trace = timelines[rank].trace
        operators = _operators(trace)
        columns = (found.operation.tolist(), (found.end_ns - found.start_ns).tolist())
        for at, length_ns in zip(*columns, strict=True):
            name = int(trace.operations.name[at])
            yield rank, trace.classes[name], operators[at], trace.names[name], 1, length_ns / 1e9
    on_gpu = {
        (rank, trace.classes[at])
        for rank, one in timelines.items()
        for trace in (one.trace,)
        for at in range(len(trace.names))
    }
    for part in path.parts:
        if (part.rank, part.part_class) not in on_gpu:
            yield part.rank, part.part_class, "", part.name, part.count, part.total_s


def _operators(trace: RankTrace) -> Sequence[str]:
    """The operator that launched each operation; empty if unknown."""
    spans = trace.detail.spans if trace.detail else None
    if spans is None or not len(spans):
        return [""] * len(trace.operations)
    innermost, launched = spans.nearest(spans.are(SpanKind.OPERATOR)), launching_spans(trace, spans)
    operator = [int(innermost[at]) if at >= 0 else -1 for at in launched.tolist()]
    return [spans.labels[spans.label[at]].name if at >= 0 else "" for at in operator]


def _gain_rows(
    together: Collectives, timelines: Mapping[int, RankTimeline], path: CriticalPath
) -> list[tuple[Cell, ...]]:
    return [
        (
            one.part_class,
            one.path_s,
            one.path_s / path.length_s,
            one.gain_s,
            one.gain_s / path.length_s,
        )
        for one in path_gains(timelines, together, path)
    ]
