"""What was on each GPU over one step, as lanes of a picture."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from perfd.report.report_model import Lane, Timeline
from perfd.trace.diagnosis import RankAnalysis, TraceAnalysis
from perfd.trace.model.intervals import Coverage

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
