"""Images of a report as inline SVG; colors are classes, so that the page's theme applies."""

from __future__ import annotations

from html import escape

from perfd.formatting import duration, percent
from perfd.report.report_model import Bars, Timeline

NAMES = {
    "compute": "computing",
    "communication": "communication",
    "memory": "copies",
    "launch": "idle: not launched",
    "sync": "idle: synchronizing",
    "other": "idle: other",
    "idle": "idle",
    "unknown": "not known (records lost)",
}
_WIDTH = 960
_LABEL = 78
_CHARACTER = 7
"""About as wide as a letter of a label."""
_BAR = 22
_ROW = 30
_LANE = 11
_GROUP_GAP = 12
_AXIS = 24
_TICKS = 5
_LABELLED = 0.055
"""A part shorter than this share of the bar has no room for its number."""


def bars(figure: Bars) -> str:
    """One stacked bar a row, each part with its share."""
    height = len(figure.rows) * _ROW + 6
    left = max(_LABEL, *(_CHARACTER * len(label) + 14 for label in figure.labels))
    room = _WIDTH - left - 10
    parts = []
    for at, (label, row) in enumerate(zip(figure.labels, figure.rows, strict=True)):
        y = at * _ROW + 4
        parts.append(
            f'<text class="label" x="{left - 10}" y="{y + 15}" text-anchor="end">{escape(label)}</text>'
        )
        x = float(left)
        for segment in row:
            width = segment.ratio * room
            tip = f"{label}: {NAMES.get(segment.kind, segment.kind)} {percent(segment.ratio)}"
            parts.append(
                f'<rect class="{segment.kind}" x="{x:.2f}" y="{y}" width="{max(width - 1, 0.4):.2f}"'
                f' height="{_BAR}"><title>{escape(tip)}</title></rect>'
            )
            if segment.ratio >= _LABELLED:
                parts.append(
                    f'<text class="on {segment.kind}-text" x="{x + width / 2:.2f}" y="{y + 15}"'
                    f' text-anchor="middle">{percent(segment.ratio)}</text>'
                )
            x += width
    return _svg(height, parts, figure.title)


def timeline(figure: Timeline) -> str:
    """Lanes over time, one group of lanes a rank, with an axis below."""
    room = _WIDTH - _LABEL - 10
    parts, y = [], 4.0
    bottom = 4 + sum(len(lanes) * _LANE + _GROUP_GAP for _, lanes in figure.groups)
    for tick in range(_TICKS + 1):
        x = _LABEL + room * tick / _TICKS
        anchor = "start" if tick == 0 else "end" if tick == _TICKS else "middle"
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{bottom + 15:.1f}" text-anchor="{anchor}">'
            f"{duration(figure.span_s * tick / _TICKS)}</text>"
        )
    for name, lanes in figure.groups:
        middle = y + len(lanes) * _LANE / 2 + 4
        parts.append(
            f'<text class="label" x="{_LABEL - 10}" y="{middle:.1f}" text-anchor="end">{escape(name)}</text>'
        )
        for lane in lanes:
            parts.append(f'<rect class="lane" x="{_LABEL}" y="{y:.1f}" width="{room}" height="{_LANE - 2}"/>')
            parts.append(f'<g class="{lane.kind}">')
            parts += [
                f'<rect x="{_LABEL + begin * room:.1f}" y="{y:.1f}" height="{_LANE - 2}"'
                f' width="{max((end - begin) * room, 0.6):.1f}"'
                + (f' opacity="{density:.1f}"/>' if density < 1 else "/>")
                for begin, end, density in lane.spans
            ]
            parts.append(f"<title>{escape(f'{name}: {lane.label}')}</title></g>")
            y += _LANE
        y += _GROUP_GAP
    return _svg(bottom + _AXIS, parts, figure.title)


def kinds(figure: Bars | Timeline) -> list[str]:
    """What a legend has to explain, in the order of drawing."""
    found = (
        [segment.kind for row in figure.rows for segment in row]
        if isinstance(figure, Bars)
        else [lane.kind for _, lanes in figure.groups for lane in lanes]
    )
    return [kind for kind in NAMES if kind in found]


def _svg(height: float, parts: list[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
