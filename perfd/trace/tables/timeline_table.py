"""Every GPU operation by start time, and the part of a trace that is within ranges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from typing import TypeVar

import numpy as np

from perfd.trace.breakdown import launching_call
from perfd.trace.model.intervals import Flags
from perfd.trace.model.rank_trace import GpuOperations, HostCalls, Phase, RankTrace
from perfd.trace.tables.trace_table import Cell, named, table_of_ranks

_Columns = TypeVar("_Columns", GpuOperations, HostCalls)


@table_of_ranks(
    "timeline",
    "Timeline of operations",
    named("rank start_s stream operation class duration_s gap_s range blocks threads"),
)
def timeline(trace: RankTrace) -> Iterator[tuple[Cell, ...]]:
    """One row per operation, with the gap before it on its stream and the innermost range of its launch."""
    operations, detail = trace.operations, trace.detail
    ranges = _innermost(trace)
    ends: dict[int, int] = {}
    first_ns = int(operations.start_ns[0]) if len(operations) else 0
    for at in range(len(operations)):
        start, end, stream = (
            int(column[at]) for column in (operations.start_ns, operations.end_ns, operations.stream)
        )
        name, shape = int(operations.name[at]), int(detail.launch_shape[at]) if detail else -1
        blocks, _, threads = (detail.launch_shapes[shape] if detail and shape >= 0 else "").partition(" ")
        gap_ns = max(0, start - ends[stream]) if stream in ends else None
        ends[stream] = max(end, ends.get(stream, end))
        yield (
            trace.rank,
            (start - first_ns) / 1e9,
            stream,
            trace.names[name],
            trace.classes[name],
            (end - start) / 1e9,
            None if gap_ns is None else gap_ns / 1e9,
            ranges[at],
            blocks,
            threads,
        )


def _innermost(trace: RankTrace) -> list[str]:
    """The innermost range around the launch of each operation; empty if there is none."""
    found = [""] * len(trace.operations)
    call = launching_call(trace)
    by_thread: dict[int, list[Phase]] = {}
    for phase in trace.phases:
        by_thread.setdefault(phase.thread, []).append(phase)
    known = np.flatnonzero(call >= 0)
    threads, times = trace.calls.thread[call[known]], trace.calls.start_ns[call[known]]
    for thread, phases in by_thread.items():
        mine = np.flatnonzero(threads == thread)
        open_: list[Phase] = []
        coming = iter(sorted(phases, key=lambda one: (one.start_ns, -one.end_ns)))
        following = next(coming, None)
        for at in mine[np.argsort(times[mine], kind="stable")].tolist():
            time = int(times[at])
            while following is not None and following.start_ns <= time:
                open_.append(following)
                following = next(coming, None)
            # Ranges with start and end calls need not be nested.
            open_ = [one for one in open_ if one.end_ns > time]
            if open_:
                found[int(known[at])] = open_[-1].name
    return found


def within_ranges(trace: RankTrace, pattern: str) -> RankTrace:
    """The trace with only work launched in ranges that match a shell pattern, such as `my_decode_10_*`."""
    chosen = [phase for phase in trace.phases if fnmatchcase(phase.name, pattern)]
    calls = trace.calls
    inside = np.zeros(len(calls), dtype=np.bool_)
    for thread in sorted({phase.thread for phase in chosen}):
        mine = np.flatnonzero(calls.thread == thread)
        starts = calls.start_ns[mine]
        for phase in chosen:
            if phase.thread == thread:
                low, high = np.searchsorted(starts, (phase.start_ns, phase.end_ns))
                inside[mine[low:high]] = True
    call = launching_call(trace)
    kept = (call >= 0) & inside[np.maximum(call, 0)] if len(calls) else np.zeros(len(call), dtype=np.bool_)
    detail = trace.detail
    return replace(
        trace,
        operations=_chosen(trace.operations, kept),
        calls=_chosen(calls, inside),
        phases=chosen,
        # They refer to operations by index.
        collectives=(),
        detail=detail
        and replace(detail, size_bytes=detail.size_bytes[kept], launch_shape=detail.launch_shape[kept]),
    )


def _chosen(columns: _Columns, which: Flags) -> _Columns:
    return type(columns)(**{one.name: getattr(columns, one.name)[which] for one in fields(columns)})
