"""The report of a capture, with what was on each GPU over one step, as lanes of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from perfd.analysis.flops.mfu_tier import MfuTier, attainable_mfu
from perfd.formatting import duration, flops, flops_per_s, percent
from perfd.report.report_model import Bars, BarSegment, Lane, Report, ReportFinding, ReportMetric, Timeline
from perfd.report.sources.trace_notes import largest_part, notes_of
from perfd.report.sources.trace_tables import source_of, tables_of
from perfd.trace.diagnosis import Diagnosis, RankAnalysis, TimeShares, TraceAnalysis
from perfd.trace.model.intervals import Coverage

_ROWS = 40
"""Ranks of the pictures and of the table; the JSON has all."""


_BINS = 900
"""Bins per step, about one per pixel."""
_LEVELS = 5
"""Shades of a bin, by how much of it is covered."""
_RANKS = 16
"""Lanes that fit on a page."""


def timeline_of(analysis: TraceAnalysis) -> Timeline:
    """The first whole step that all ranks show, else their whole windows; on one clock where it is known."""
    ranks = list(analysis.ranks[:_RANKS])
    aligned = all(rank.timeline.trace.epoch_ns is not None for rank in ranks)
    step = _common_step(ranks)
    windows = [_window(rank, step) for rank in ranks]
    if aligned:
        offsets = [rank.timeline.trace.epoch_ns or 0 for rank in ranks]
        begin = min(window[0] + offset for window, offset in zip(windows, offsets, strict=True))
        end = max(window[1] + offset for window, offset in zip(windows, offsets, strict=True))
        bounds = [(begin - offset, end - offset) for offset in offsets]
    else:
        longest = max(window[1] - window[0] for window in windows)
        bounds = [(window[0], window[0] + longest) for window in windows]
    what = f"Step {step}" if step is not None else "The whole window"
    clock = "one clock" if aligned else "each rank from its own begin"
    return Timeline(
        title=f"{what} on every GPU",
        source=f"GPU operations of each rank's trace, {clock}; the darker, the more of that time is covered",
        span_s=(bounds[0][1] - bounds[0][0]) / 1e9,
        groups=[
            (f"rank {rank.rank}", _lanes(rank, *bound)) for rank, bound in zip(ranks, bounds, strict=True)
        ],
    )


def _common_step(ranks: list[RankAnalysis]) -> int | None:
    numbers = [{step.step for step in rank.steps if step.step is not None} for rank in ranks]
    common = set.intersection(*numbers) if numbers else set()
    return min(common, default=None)


def _window(rank: RankAnalysis, step: int | None) -> tuple[int, int]:
    window = rank.timeline.window
    found = next((one for one in window.steps if one.number == step), None)
    return (found.start_ns, found.end_ns) if found else (window.start_ns, window.end_ns)


def _lanes(rank: RankAnalysis, start_ns: int, end_ns: int) -> list[Lane]:
    timeline = rank.timeline
    return [
        Lane(label=label, kind=kind, spans=_spans(coverage, start_ns, end_ns))
        for label, kind, coverage in (
            ("compute", "compute", timeline.compute),
            ("communication", "communication", timeline.communication),
            ("copies", "memory", timeline.memory),
        )
    ]


def _spans(coverage: Coverage, start_ns: int, end_ns: int) -> list[tuple[float, float, float]]:
    """Neighboring bins of about the same density become one span, to keep the image small."""
    edges = np.linspace(start_ns, end_ns, _BINS + 1).astype(np.int64)
    covered = coverage.covered_many_ns(edges[:-1], edges[1:]) / np.maximum(np.diff(edges), 1)
    levels = np.ceil(covered * _LEVELS).astype(int).tolist()
    spans, at = [], 0
    for level, run in groupby(levels):
        length = len(list(run))
        if level:
            spans.append((at / _BINS, (at + length) / _BINS, level / _LEVELS))
        at += length
    return spans


def report_of_trace(analysis: TraceAnalysis, diagnosis: Diagnosis) -> Report:
    """Everything about a capture that a person wants to read."""
    return Report(
        title="Where the time of this capture went",
        subtitle=_subtitle(analysis),
        headline=_headline(diagnosis),
        summary=_summary(analysis, diagnosis),
        metrics=_metrics(analysis, diagnosis.shares),
        findings=[ReportFinding.of(found) for found in diagnosis.findings],
        figures=[_bars(analysis), timeline_of(analysis)],
        tables=tables_of(analysis, diagnosis),
        notes=notes_of(analysis),
        step_time_s=_step_time_s(analysis),
    )


def _step_time_s(analysis: TraceAnalysis) -> float | None:
    steps = [step.span_s for rank in analysis.complete or analysis.ranks for step in rank.steps]
    return sum(steps) / len(steps) if steps else None


def _subtitle(analysis: TraceAnalysis) -> str:
    gpus = {rank.timeline.trace.gpu for rank in analysis.ranks}
    named = f" on {', '.join(sorted(filter(None, gpus)))}" if any(gpus) else ""
    other = " and GPUs without a name" if any(gpus) and None in gpus else ""
    count = len(analysis.ranks)
    return f"{count} rank{'s' if count > 1 else ''}{named}{other}; {source_of(analysis)}"


def _headline(diagnosis: Diagnosis) -> str:
    if diagnosis.answer:
        return diagnosis.answer
    if diagnosis.first is None:
        return "What limits it is not known: no rank has all its GPU records."
    return f"{diagnosis.first.headline}."


def _summary(analysis: TraceAnalysis, diagnosis: Diagnosis) -> list[str]:
    sentences = list(diagnosis.first.evidence[:2]) if diagnosis.first else []
    if diagnosis.cause and diagnosis.bottleneck:
        sentences.append(largest_part(diagnosis.bottleneck))
    gains = [found for found in diagnosis.findings if found.gain_ratio]
    if gains:
        most = diagnosis.cause or max(gains, key=lambda found: found.gain_ratio or 0.0)
        sentences.append(f"Most to gain: {most.advice}")
    if analysis.model_use:
        best = _attainable_mfu(analysis, diagnosis.shares)
        of_best = f" of an attainable {percent(best)} (the same kernels without gaps)" if best else ""
        sentences.append(f"MFU is {percent(analysis.model_use.mfu_ratio)}{of_best}.")
    lossy = [str(rank.rank) for rank in analysis.ranks if not rank.timeline.complete]
    if lossy:
        sentences.append(
            f"GPU records of rank {', '.join(lossy)} are missing, so means are over the other ranks."
        )
    return sentences


def _attainable_mfu(analysis: TraceAnalysis, shares: TimeShares | None) -> float | None:
    """The MFU if the same compute kernels ran without gaps: no waiting, no exposed transfers."""
    use = analysis.model_use
    return attainable_mfu(use.mfu_ratio, 1 - shares.compute) if use and shares else None


def _metrics(analysis: TraceAnalysis, shares: TimeShares | None) -> list[ReportMetric]:
    source, ranks = source_of(analysis), analysis.complete or list(analysis.ranks)
    over = f", mean over {len(ranks)} ranks" if len(ranks) > 1 else ""
    how = f"{source}; unions of GPU intervals in the window{over}"
    mean_span = sum(rank.whole.span_s for rank in ranks) / len(ranks)
    found = [
        ReportMetric(name="Window", value=duration(mean_span), source=f"{source}; {_window_words(ranks[0])}"),
    ]
    step_time_s = _step_time_s(analysis)
    if step_time_s is not None:
        source_of_steps = f"{source}; whole steps, mean"
        found.append(ReportMetric(name="Step time", value=duration(step_time_s), source=source_of_steps))
    if shares is not None:
        found += [
            ReportMetric(name="Computing", value=percent(shares.compute), source=how),
            ReportMetric(
                name="Exposed communication", value=percent(shares.exposed_communication), source=how
            ),
            ReportMetric(name="Exposed copies", value=percent(shares.exposed_memory), source=how),
            *_idle_metrics(ranks, f"{source}; gaps against the host's calls{over}"),
        ]
    overlaps = [rank.whole.overlap_ratio for rank in ranks if rank.whole.overlap_ratio is not None]
    if overlaps:
        overlap = percent(sum(overlaps) / len(overlaps))
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
        tier = MfuTier.of(use.mfu_ratio).word
        found.append(ReportMetric(name="MFU tier", value=tier, source="docs/analysis-thresholds.md"))
        best = _attainable_mfu(analysis, shares)
        if best is not None:
            kept = f"{source}; MFU over the compute share: the same kernels without gaps"
            found.append(ReportMetric(name="Attainable MFU", value=percent(best), source=kept))
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
        count = len(rank.steps)
        return f"{count} whole step{'s' if count > 1 else ''} on the host's clock"
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
        source=f"{source_of(analysis)}; each instant counts once: compute, else copies, else communication",
        labels=[f"rank {rank.rank}" for rank in analysis.ranks[:_ROWS]],
        rows=rows,
    )
