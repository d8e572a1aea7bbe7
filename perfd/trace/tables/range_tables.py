"""Ranges that the program named, those that differ only in numbers together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from perfd.trace.breakdown import PhaseRow, RankTimeline, range_rows
from perfd.trace.model.rank_trace import RankTrace
from perfd.trace.tables.trace_table import TraceTable, named

_NUMBER = re.compile(r"(?<![A-Za-z])\d+(?:\.\d+)?")


def ranges(traces: Sequence[RankTrace]) -> TraceTable:
    """By pattern, as `my_decode_*`: time on the host, and on the GPU of what was launched within."""
    return TraceTable(
        name="ranges",
        title="Named ranges, by pattern",
        columns=named(
            "rank range domain count host_total_s host_median_s host_min_s host_max_s gpu_s "
            "gpu_busy_s operations_count payload_mean payload_min payload_max"
        ),
        rows=[
            (
                trace.rank,
                row.name,
                domain,
                row.count,
                row.host_s,
                row.host_median_s,
                row.host_min_s,
                row.host_max_s,
                row.gpu_s,
                row.busy_s,
                row.operation_count,
                row.payload_mean,
                row.payload_min,
                row.payload_max,
            )
            for trace in traces
            for domain, row in _by_domain(trace)
        ],
        missing="No trace has named ranges: NVTX for Nsight Systems, record_function for PyTorch's profiler.",
    )


def _by_domain(trace: RankTrace) -> list[tuple[str, PhaseRow]]:
    """Rows with their domain: the same name in another domain is another range."""
    domains = sorted({phase.domain for phase in trace.phases})
    found = [
        (domain, row)
        for domain in domains
        for row in range_rows(
            RankTimeline(replace(trace, phases=[one for one in trace.phases if one.domain == domain])),
            pattern_of,
            whole_trace=True,
        )
    ]
    return sorted(found, key=lambda one: (-one[1].gpu_s, -one[1].host_s))


@lru_cache(maxsize=65536)
def pattern_of(name: str) -> str:
    """The name with `*` for each number that stands by itself or behind a mark: `layer_*`, `fp8` stays."""
    return _NUMBER.sub("*", name)
