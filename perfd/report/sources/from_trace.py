"""The report of a capture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfd.formatting import UNKNOWN, bandwidth, data_size, duration, flops, flops_per_s, percent, rank_names
from perfd.report.report_model import Bars, BarSegment, Report, ReportFinding, ReportMetric, ReportTable
from perfd.report.report_text import kernel_name
from perfd.report.sources.timeline_lanes import timeline_of
from perfd.report.sources.trace_notes import notes_of
from perfd.trace.diagnosis import Diagnosis, RankAnalysis, TimeShares, TraceAnalysis

_KERNELS = 25
_ROWS = 40
_NAME_WIDTH = 64


def report_of_trace(analysis: TraceAnalysis, diagnosis: Diagnosis) -> Report:
    """Everything about a capture that a person wants to read."""
    first = next(iter(analysis.complete), analysis.ranks[0])
    tables = [
        *_comparison_table(analysis, diagnosis),
        _breakdown_table(analysis),
        *_step_tables(first),
        _kernel_table(first),
        *_sync_table(first),
    ]
    if any(analysis.collectives.by_rank.values()):
        tables.append(_collective_table(analysis))
    if first.phases:
        tables.append(_phase_table(first))
    return Report(
        title="Where the time of this capture went",
        subtitle=_subtitle(analysis),
        headline=_headline(diagnosis),
        summary=_summary(analysis, diagnosis),
        metrics=_metrics(analysis, diagnosis.shares),
        findings=[ReportFinding.of(found) for found in diagnosis.findings],
        figures=[_bars(analysis), timeline_of(analysis)],
        tables=tables,
        notes=notes_of(analysis),
    )


def _source(analysis: TraceAnalysis) -> str:
    files = sorted({Path(rank.timeline.trace.file).name for rank in analysis.ranks})
    return files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


def _subtitle(analysis: TraceAnalysis) -> str:
    gpus = sorted({rank.timeline.trace.gpu or "unknown GPU" for rank in analysis.ranks})
    count = len(analysis.ranks)
    return f"{count} rank{'s' if count > 1 else ''} on {', '.join(gpus)}; {_source(analysis)}"


def _headline(diagnosis: Diagnosis) -> str:
    if diagnosis.answer:
        return diagnosis.answer
    if diagnosis.first is None:
        return "What limits it is not known: no rank has all its GPU records."
    return f"{diagnosis.first.headline}."


def _summary(analysis: TraceAnalysis, diagnosis: Diagnosis) -> list[str]:
    sentences = list(diagnosis.first.evidence[:2]) if diagnosis.first else []
    if diagnosis.cause and diagnosis.bottleneck:
        sentences.append(f"Class of bottleneck: {diagnosis.bottleneck.kind.short_name}.")
    gains = [found for found in diagnosis.findings if found.gain_ratio]
    if gains:
        most = diagnosis.cause or max(gains, key=lambda found: found.gain_ratio or 0.0)
        sentences.append(f"Most to gain: {most.advice}")
    if analysis.model_use:
        sentences.append(f"MFU is {percent(analysis.model_use.mfu_ratio)}.")
    lossy = [str(rank.rank) for rank in analysis.ranks if not rank.timeline.complete]
    if lossy:
        sentences.append(
            f"GPU records of rank {', '.join(lossy)} are missing, so means are over the other ranks."
        )
    return sentences


def _metrics(analysis: TraceAnalysis, shares: TimeShares | None) -> list[ReportMetric]:
    source, ranks = _source(analysis), analysis.complete or list(analysis.ranks)
    how = f"{source}; unions of GPU intervals in the window, mean over {len(ranks)} ranks"
    mean_span = sum(rank.whole.span_s for rank in ranks) / len(ranks)
    found = [
        ReportMetric(name="Window", value=duration(mean_span), source=f"{source}; {_window_words(ranks[0])}"),
    ]
    steps = [step.span_s for rank in ranks for step in rank.steps]
    if steps:
        value = duration(sum(steps) / len(steps))
        found.append(ReportMetric(name="Step time", value=value, source=f"{source}; whole steps, mean"))
    if shares is not None:
        found += [
            ReportMetric(name="Computing", value=percent(shares.compute), source=how),
            ReportMetric(
                name="Exposed communication", value=percent(shares.exposed_communication), source=how
            ),
            ReportMetric(name="Exposed copies", value=percent(shares.exposed_memory), source=how),
            *_idle_metrics(ranks, f"{source}; gaps against the host's calls, mean over ranks"),
        ]
    overlaps = [rank.whole.overlap_ratio for rank in ranks if rank.whole.overlap_ratio is not None]
    overlap = percent(sum(overlaps) / len(overlaps)) if overlaps else UNKNOWN
    found.append(ReportMetric(name="Communication hidden by computing", value=overlap, source=how))
    split = list(analysis.collectives.split.values())
    total = sum(transfer + wait for transfer, wait in split)
    if total > 0:
        value = percent(sum(wait for _, wait in split) / total)
        matched = f"{source}; durations of matched operations over all ranks"
        found.append(ReportMetric(name="Waiting, of communication", value=value, source=matched))
    if analysis.model_use:
        use = analysis.model_use
        peak = f"{flops(use.model_flops_per_gpu_per_step)} per GPU and step"
        found.append(
            ReportMetric(
                name="MFU",
                value=percent(use.mfu_ratio),
                source=f"{peak}, over the step time and {flops_per_s(use.peak_flops_per_s)}"
                f" ({use.precision}, dense{', unverified' if use.peak_unverified else ''})",
            )
        )
    cost = ranks[0].launches
    if cost and cost.call_s is not None:
        origin = f"{source}; median of {cost.count} launches of rank {ranks[0].rank}"
        found.append(ReportMetric(name="A launch takes", value=duration(cost.call_s), source=origin))
        found.append(ReportMetric(name="A launch queues", value=duration(cost.queue_s), source=origin))
    return found


def _idle_metrics(ranks: Sequence[RankAnalysis], source: str) -> list[ReportMetric]:
    """Means of what the bars and the table show of each rank."""
    known = [(rank.whole.idle, rank.whole.span_s) for rank in ranks if rank.whole.idle and rank.whole.span_s]
    if not known:
        return []
    parts = (
        ("Idle, not launched", [idle.unlaunched_s / span_s for idle, span_s in known]),
        ("Idle, synchronizing", [idle.synchronizing_s / span_s for idle, span_s in known]),
        ("Idle, launch on its way", [idle.other_s / span_s for idle, span_s in known]),
    )
    return [
        ReportMetric(name=name, value=percent(sum(ratios) / len(ratios)), source=source)
        for name, ratios in parts
    ]


def _window_words(rank: RankAnalysis) -> str:
    if rank.timeline.window.source == "steps":
        return f"{len(rank.steps)} whole steps on the host's clock"
    return "from the first to the last GPU operation"


def _bars(analysis: TraceAnalysis) -> Bars:
    rows = []
    for rank in analysis.ranks[:_ROWS]:
        whole, span = rank.whole, rank.whole.span_s or 1.0
        parts = [
            ("compute", whole.compute_s),
            ("memory", whole.exposed_memory_s),
            ("communication", whole.exposed_communication_s),
        ]
        if whole.idle_s is None:
            parts.append(("unknown", whole.uncovered_s))
        elif whole.idle is None:
            parts.append(("idle", whole.idle_s))
        else:
            parts += [
                ("launch", whole.idle.unlaunched_s),
                ("sync", whole.idle.synchronizing_s),
                ("other", whole.idle.other_s),
            ]
        rows.append([BarSegment(kind=kind, ratio=value / span) for kind, value in parts if value > 0])
    return Bars(
        title="Where each rank's window went",
        source=f"{_source(analysis)}; each instant counts once: compute, else copies, else communication",
        labels=[f"rank {rank.rank}" for rank in analysis.ranks[:_ROWS]],
        rows=rows,
    )


def _comparison_table(analysis: TraceAnalysis, diagnosis: Diagnosis) -> list[ReportTable]:
    found = diagnosis.comparison
    if found is None or not found.differences:
        return []
    return [
        ReportTable(
            title=f"Rank {found.rank} beside its peers",
            source=f"{_source(analysis)}; of a window of {duration(found.span_s)}, peers are the median of"
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
        source=f"{_source(analysis)}; unions of GPU intervals, clipped to the window",
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
        source=f"{_source(analysis)}; the shortest duration of a matched operation is its transfer;"
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
