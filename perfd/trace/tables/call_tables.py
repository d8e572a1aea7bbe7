"""What the host did: calls into the GPU's runtime and into the operating system, and launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from perfd.trace.breakdown import launching_call
from perfd.trace.model.operation_kinds import OperationKind
from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.model.trace_detail import NamedCalls
from perfd.trace.tables.distribution import COLUMNS, distributions
from perfd.trace.tables.trace_table import Cell, TraceTable, named, table_of_ranks

CALL_OUTLIER_NS = 50_000
"""A launch call that takes longer is an outlier, and so is a delay of twice as long: HolisticTraceAnalysis'
defaults."""
DELAY_OUTLIER_NS = 100_000
"""The same, from the end of a launch call to its kernel."""


def api(traces: Sequence[RankTrace]) -> TraceTable:
    """All calls into the CUDA or HIP runtime and driver."""
    calls = [(trace.rank, trace.detail.api) for trace in traces if trace.detail]
    return _calls("api", "Calls into the GPU's runtime and driver", calls, "No trace has the host's calls.")


def os_calls(traces: Sequence[RankTrace]) -> TraceTable:
    """Calls into the operating system."""
    calls = [(trace.rank, trace.detail.os_calls) for trace in traces if trace.detail]
    missing = (
        "No trace has calls into the operating system: record them with `nsys profile --trace=osrt,...`."
    )
    return _calls("os", "Calls into the operating system", calls, missing)


def library_calls(traces: Sequence[RankTrace]) -> TraceTable:
    """Calls into cuDNN and cuBLAS."""
    calls = [(trace.rank, trace.detail.library_calls) for trace in traces if trace.detail]
    missing = "No trace has calls into cuDNN or cuBLAS: record with `nsys profile --trace=cudnn,cublas,...`."
    return _calls("libraries", "Calls into cuDNN and cuBLAS", calls, missing)


def _calls(name: str, title: str, calls: Sequence[tuple[int | None, NamedCalls]], missing: str) -> TraceTable:
    return TraceTable(
        name=name,
        title=title,
        columns=(*named("rank call"), *COLUMNS),
        rows=[row for rank, found in calls for row in _call_rows(rank, found)],
        missing=missing,
    )


def _call_rows(rank: int | None, calls: NamedCalls) -> Iterator[tuple[Cell, ...]]:
    durations = calls.end_ns - calls.start_ns
    total_ns = int(durations.sum())
    for one in distributions(calls.name, durations):
        yield rank, calls.names[one.group], *one.cells(total_ns)


@table_of_ranks(
    "launches",
    "Launches: the call, the wait until the kernel begins, the kernel",
    named(
        "rank operation count call_median_s call_max_s queue_median_s queue_max_s run_median_s "
        "run_max_s short_count slow_call_count late_count"
    ),
    missing="No trace has the host's launches.",
)
def launches(trace: RankTrace) -> Iterator[tuple[Cell, ...]]:
    """By kernel: its launch calls, how long it queued, how long it ran."""
    at = launching_call(trace)
    known = at >= 0
    operations, calls = trace.operations, trace.calls
    names = operations.name[known].astype(np.int64)
    call_ns = (calls.end_ns - calls.start_ns)[at[known]]
    delay_ns = operations.start_ns[known] - calls.end_ns[at[known]]
    queue_ns = np.maximum(delay_ns, 0)
    run_ns = (operations.end_ns - operations.start_ns)[known]
    is_kernel = operations.kind[known] != OperationKind.MEMORY
    rows = []
    for one in distributions(names, run_ns):
        mine = names == one.group
        rows.append(
            (
                trace.rank,
                trace.names[one.group],
                one.count,
                float(np.median(call_ns[mine])) / 1e9,
                int(call_ns[mine].max()) / 1e9,
                float(np.median(queue_ns[mine])) / 1e9,
                int(queue_ns[mine].max()) / 1e9,
                one.median_ns / 1e9,
                one.max_ns / 1e9,
                int(((run_ns < call_ns) & is_kernel)[mine].sum()),
                int((call_ns[mine] > CALL_OUTLIER_NS).sum()),
                int((delay_ns[mine] > DELAY_OUTLIER_NS).sum()),
            )
        )
    yield from rows
