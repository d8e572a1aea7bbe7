"""The tables of a capture's report."""

from __future__ import annotations

from pathlib import Path

from perfd.formatting import UNKNOWN, bandwidth, data_size, duration, percent, rank_names
from perfd.report.display_names import kernel_name
from perfd.report.report_model import ReportTable
from perfd.trace.diagnosis import Diagnosis, RankAnalysis, TraceAnalysis

_KERNELS = 25
"""Rows of the table, the costliest first; `perfd trace table kernels` has all."""
_PATH_RANKS = 8
"""Ranks with the largest parts of the critical path."""
_ROWS = 40
"""Ranks or steps of a table, the first ones; `perfd trace table` has all."""
_NAME_WIDTH = 64
"""Characters of a kernel's name in a table."""


def tables_of(analysis: TraceAnalysis, diagnosis: Diagnosis) -> list[ReportTable]:
    """All tables, those of one rank for the first whole one."""
    first = next(iter(analysis.complete), analysis.ranks[0])
    tables = [
        *_comparison_table(analysis, diagnosis),
        _breakdown_table(analysis),
        *_path_table(analysis),
        *_step_tables(first),
        _kernel_table(first),
        *_sync_table(first),
    ]
    if any(analysis.collectives.by_rank.values()):
        tables.append(_collective_table(analysis))
    if first.phases:
        tables.append(_phase_table(first))
    return tables


def source_of(analysis: TraceAnalysis) -> str:
    """Where the numbers of a capture come from."""
    files = sorted({Path(rank.timeline.trace.file).name for rank in analysis.ranks})
    return files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


def _comparison_table(analysis: TraceAnalysis, diagnosis: Diagnosis) -> list[ReportTable]:
    found = diagnosis.comparison
    if found is None or not found.differences:
        return []
    return [
        ReportTable(
            title=f"Rank {found.rank} compared with its peers",
            source=f"{source_of(analysis)}; of a window of {duration(found.span_s)}, peers are the median of"
            f" {rank_names(found.peers)}",
            columns=("what", "name", f"rank {found.rank}", "peers", "longer", "count", "peers' count"),
            rows=[
                (
                    one.what,
                    one.name[:_NAME_WIDTH],
                    duration(one.own_s),
                    duration(one.peers_s),
                    f"{'-' if one.cost_s < 0 else ''}{duration(abs(one.cost_s))}",
                    "" if one.own_count is None else str(one.own_count),
                    "" if one.peers_count is None else f"{one.peers_count:.0f}",
                )
                for one in found.differences
            ],
            text_columns=2,
        )
    ]


def _path_table(analysis: TraceAnalysis) -> list[ReportTable]:
    path = analysis.path
    if path is None or not path.length_s:
        return []
    sums: dict[tuple[int, str, str], list[float]] = {}
    for part in path.parts:
        row = sums.setdefault((part.rank, part.part_class, part.name), [0, 0.0])
        row[0] += part.count
        row[1] += part.total_s
    costly = sorted(sums.items(), key=lambda item: -item[1][1])[:_KERNELS]
    ranks = ", ".join(
        f"rank {rank} {percent(part / path.length_s)}"
        for rank, part in list(path.by_rank().items())[:_PATH_RANKS]
    )
    return [
        ReportTable(
            title=f"Critical path ({duration(path.length_s)})",
            source=f"{source_of(analysis)}; the chain of work across all ranks that determines the length"
            f" ({ranks}): a saving shortens the window by at most its time on the path",
            columns=("class", "name", "rank", "count", "on the path", "share"),
            rows=[
                (
                    part_class.replace("_", " "),
                    kernel_name(name, _NAME_WIDTH),
                    str(rank),
                    f"{count:.0f}",
                    duration(total),
                    percent(total / path.length_s),
                )
                for (rank, part_class, name), (count, total) in costly
            ],
            text_columns=2,
            shares=[total / path.length_s for _, (_, total) in costly],
        )
    ]


def _breakdown_table(analysis: TraceAnalysis) -> ReportTable:
    rows = []
    for rank in analysis.ranks[:_ROWS]:
        whole = rank.whole
        idle = whole.idle
        rows.append(
            (
                str(rank.rank),
                duration(whole.span_s),
                duration(whole.compute_s),
                duration(whole.communication_s),
                duration(whole.exposed_communication_s),
                duration(whole.exposed_memory_s),
                duration(whole.idle_s),
                duration(idle.unlaunched_s if idle else None),
                duration(idle.synchronizing_s if idle else None),
                duration(idle.other_s if idle else None),
                str(whole.kernel_count),
            )
        )
    return ReportTable(
        title="Every rank",
        source=f"{source_of(analysis)}; unions of GPU intervals, clipped to the window",
        columns=(
            "rank", "window", "compute", "communication", "exposed", "exposed copies", "idle", "not launched",
            "synchronizing", "on its way", "kernels",
        ),
        rows=rows,
    )  # fmt: skip


def _step_tables(rank: RankAnalysis) -> list[ReportTable]:
    if len(rank.steps) < 2:
        return []
    rows = [
        (
            str(step.step),
            duration(step.span_s),
            duration(step.compute_s),
            duration(step.exposed_communication_s),
            duration(step.exposed_memory_s),
            duration(step.idle_s),
        )
        for step in rank.steps[:_ROWS]
    ]
    return [
        ReportTable(
            title=f"Steps of rank {rank.rank}",
            source=f"{Path(rank.timeline.trace.file).name}; the same within each step",
            columns=("step", "time", "compute", "exposed communication", "exposed copies", "idle"),
            rows=rows,
        )
    ]


def _kernel_table(rank: RankAnalysis) -> ReportTable:
    span = rank.whole.span_s or 1.0
    rows = rank.kernels[:_KERNELS]
    return ReportTable(
        title=f"Kernels of rank {rank.rank}",
        source=f"{Path(rank.timeline.trace.file).name}; sums of durations by name, classes by name",
        columns=("kernel", "class", "tensor cores", "count", "total", "mean", "of the window"),
        rows=[
            (
                kernel_name(row.name, _NAME_WIDTH),
                row.kernel_class,
                "yes" if row.tensor_cores else "",
                str(row.count),
                duration(row.total_s),
                duration(row.total_s / row.count if row.count else None),
                percent(row.total_s / span),
            )
            for row in rows
        ],
        text_columns=3,
        shares=[min(1.0, row.total_s / rows[0].total_s) if rows[0].total_s else 0.0 for row in rows],
    )


def _sync_table(rank: RankAnalysis) -> list[ReportTable]:
    if not rank.syncs:
        return []
    return [
        ReportTable(
            title=f"Where the host of rank {rank.rank} waits for its GPU",
            source=f"{Path(rank.timeline.trace.file).name}; calls that return when the GPU is done",
            columns=("call", "range", "count", "per step", "host waits", "GPU idle"),
            rows=[
                (
                    point.call,
                    point.range_name[:_NAME_WIDTH] or UNKNOWN,
                    str(point.count),
                    UNKNOWN if point.per_step is None else f"{point.per_step:.3g}",
                    duration(point.host_s),
                    duration(point.idle_s),
                )
                for point in rank.syncs[:_KERNELS]
            ],
            text_columns=2,
        )
    ]


def _collective_table(analysis: TraceAnalysis) -> ReportTable:
    found = [(rank, row) for rank, rows in analysis.collectives.by_rank.items() for row in rows]
    found.sort(key=lambda item: -item[1].total_s)
    rows = found[:_ROWS]
    return ReportTable(
        title="Communication: transfer and waiting",
        source=f"{source_of(analysis)}; the shortest duration of a matched operation is its transfer;"
        " least time of a ring, if NVLink joins the group",
        columns=(
            *("operation", "group", "rank", "count", "size", "total"),
            *("exposed", "transfer", "waiting", "matched by", "bus bandwidth", "least time"),
        ),
        rows=[
            (
                row.operation + (" (no data)" if row.barrier and row.operation != "barrier" else ""),
                row.group or UNKNOWN,
                str(rank),
                str(row.count),
                data_size(row.size_bytes),
                duration(row.total_s),
                duration(row.exposed_s),
                duration(row.transfer_s),
                duration(row.wait_s),
                row.matching.value,
                bandwidth(least.bus_bytes_per_s if least else None),
                duration(least.minimum_s if least else None),
            )
            for rank, row in rows
            for least in (row.least_time_of(analysis.link_bytes_per_s),)
        ],
        text_columns=2,
        shares=[min(1.0, row.total_s / rows[0][1].total_s) if rows[0][1].total_s else 0.0 for _, row in rows],
    )


def _phase_table(rank: RankAnalysis) -> ReportTable:
    return ReportTable(
        title=f"Named ranges of rank {rank.rank}, on the GPU",
        source=f"{Path(rank.timeline.trace.file).name}; from the first to the last operation launched within",
        columns=("range", "count", "on the host", "on the GPU", "GPU busy", "operations"),
        rows=[
            (
                row.name[:_NAME_WIDTH],
                str(row.count),
                duration(row.host_s),
                duration(row.gpu_s),
                duration(row.busy_s),
                str(row.operation_count),
            )
            for row in rank.phases[:_KERNELS]
        ],
    )
