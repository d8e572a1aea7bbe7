"""Streams of the GPUs: how busy, how many operations wait in them, and why they are idle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from perfd.trace.breakdown import launching_call
from perfd.trace.model.intervals import Coverage, Ns
from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.tables.trace_table import Cell, named, table_of_ranks

CONSECUTIVE_NS = 30_000
"""Shorter gaps between kernels that were both launched are `kernel_wait`: as in HolisticTraceAnalysis 0.5.0,
whose documentation says 30 nanoseconds, but which compares microseconds."""
QUEUE_LIMIT = 1024
"""Launches that CUDA queues before a further one blocks: HolisticTraceAnalysis' default."""


def _by_stream(trace: RankTrace) -> Iterator[tuple[int, Ns]]:
    stream = trace.operations.stream
    for one in sorted(set(stream.tolist())):
        yield one, np.flatnonzero(stream == one)


@table_of_ranks(
    "streams",
    "Streams",
    named("rank stream priority operations_count busy_s busy_ratio alone_s beside_others_ratio"),
)
def streams(trace: RankTrace) -> list[tuple[Cell, ...]]:
    """How busy each stream is, and for how long nothing else runs beside it."""
    operations = trace.operations
    span_ns = int(operations.end_ns.max() - operations.start_ns[0])
    found = [
        (stream, len(rows), Coverage(operations.start_ns[rows], operations.end_ns[rows]))
        for stream, rows in _by_stream(trace)
    ]
    alone = _alone_ns([coverage for _, _, coverage in found])
    priorities = trace.detail.stream_priorities if trace.detail else {}
    rows: list[tuple[Cell, ...]] = []
    for (stream, count, coverage), alone_ns in zip(found, alone, strict=True):
        busy_ns = coverage.total_ns
        beside = 1 - alone_ns / busy_ns if busy_ns else None
        share = busy_ns / span_ns if span_ns else None
        priority = priorities.get(stream)
        rows.append((trace.rank, stream, priority, count, busy_ns / 1e9, share, alone_ns / 1e9, beside))
    return sorted(rows, key=lambda row: -float(row[4] or 0))


def _alone_ns(parts: Sequence[Coverage]) -> list[int]:
    """How long each is active while no other is."""
    starts = np.concatenate([part.starts_ns for part in parts])
    ends = np.concatenate([part.ends_ns for part in parts])
    owner = np.concatenate([np.full(len(part.starts_ns), at) for at, part in enumerate(parts)])
    times = np.concatenate((starts, ends))
    order = np.argsort(times, kind="stable")
    change = np.concatenate((np.ones(len(starts), dtype=np.int64), np.full(len(ends), -1, dtype=np.int64)))
    active = np.cumsum(change[order])
    # With one active, the sum of the numbers of those active is its number.
    who = np.cumsum((change * np.concatenate((owner, owner)))[order])
    lengths = np.diff(times[order], append=times[order][-1:] if len(times) else [])
    single = active == 1
    weights = np.bincount(who[single], weights=lengths[single], minlength=len(parts))
    return [int(value) for value in weights]


@table_of_ranks(
    "queue",
    "Queue length of each stream, over its changes",
    named("rank stream changes_count mean_length median_length max_length full_s"),
    missing="No trace has the host's launches.",
)
def queue(trace: RankTrace) -> Iterator[tuple[Cell, ...]]:
    """How many operations are launched and have not begun, at each change."""
    at = launching_call(trace)
    for stream, rows in _by_stream(trace):
        launched = rows[at[rows] >= 0]
        if not len(launched):
            continue
        begins, starts = trace.calls.start_ns[at[launched]], trace.operations.start_ns[launched]
        times = np.concatenate((begins, starts))
        change = np.concatenate((np.ones(len(begins), dtype=np.int64), np.full(len(starts), -1)))
        order = np.argsort(times, kind="stable")
        length = np.cumsum(change[order])
        lasts = np.diff(times[order], append=times[order][-1:])
        yield (
            trace.rank,
            stream,
            len(length),
            float(length.mean()),
            float(np.median(length)),
            int(length.max()),
            int(lasts[length >= QUEUE_LIMIT].sum()) / 1e9,
        )


@table_of_ranks(
    "idle",
    "Gaps of each stream by cause",
    named("rank stream idle_s host_wait_s kernel_wait_s other_s median_gap_s max_gap_s"),
    missing="No stream has two operations.",
)
def idle(trace: RankTrace) -> Iterator[tuple[Cell, ...]]:
    """Gaps of each stream by cause."""
    at = launching_call(trace)
    operations = trace.operations
    for stream, rows in _by_stream(trace):
        if len(rows) < 2:
            continue
        reached = np.maximum.accumulate(operations.end_ns[rows])[:-1]
        gap = np.maximum(operations.start_ns[rows][1:] - reached, 0)
        calls = at[rows][1:]
        launched_ns = trace.calls.start_ns[np.maximum(calls, 0)] if len(trace.calls) else np.zeros(len(gap))
        host = (calls >= 0) & (launched_ns > reached)
        kernel = ~host & (gap < CONSECUTIVE_NS)
        parts = [int(gap[which].sum()) / 1e9 for which in (host, kernel, ~host & ~kernel)]
        yield (
            trace.rank,
            stream,
            int(gap.sum()) / 1e9,
            *parts,
            float(np.median(gap)) / 1e9,
            int(gap.max()) / 1e9,
        )
