"""Images of a report as inline SVG; colors are classes, so that the page's theme applies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from perfd.formatting import duration, percent
from perfd.report.report_model import Bars, Figure, StepLine, Timeline

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
"""Of a figure, in pixels; the page scales it."""
_LABEL = 78
"""Least width for the labels of rows, in pixels."""
_CHARACTER = 7
"""About as wide as a letter of a label."""
_ROOM = _WIDTH - _LABEL - 10
"""For what is drawn over an axis."""
_BAR = 22
"""Height of a bar."""
_ROW = 30
"""Height of a row: a bar and the space below it."""
_LANE = 11
"""Height of a lane of a timeline."""
_GROUP_GAP = 12
"""Between the lanes of two ranks."""
_AXIS = 24
"""Height of an axis with its numbers, in pixels."""
_TICKS = 5
"""Parts of an axis."""
_LABELLED = 0.055
"""A part shorter than this share of the bar has no room for its number."""
_LINE_HEIGHT = 150
"""Height of a line chart, in pixels."""
_HEADROOM = 1.1
"""Times the largest value, so that its line does not touch the edge."""
_FEW_STEPS = 10
"""Ticks of fewer steps lie between steps."""
_SHOW: Mapping[str, Callable[[float], str]] = {"s": duration, "ratio": percent}


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
    labels, lanes, y = [], [], 4.0
    for name, group in figure.groups:
        middle = y + len(group) * _LANE / 2 + 4
        labels.append(
            f'<text class="label" x="{_LABEL - 10}" y="{middle:.1f}" text-anchor="end">{escape(name)}</text>'
        )
        for lane in group:
            lanes.append(f'<rect class="lane" x="0" y="{y:.1f}" width="{_ROOM}" height="{_LANE - 2}"/>')
            lanes.append(f'<g class="{lane.kind}">')
            lanes += [
                f'<rect x="{begin * _ROOM:.1f}" y="{y:.1f}" height="{_LANE - 2}"'
                f' width="{max((end - begin) * _ROOM, 0.6):.1f}"'
                + (f' opacity="{density:.1f}"/>' if density < 1 else "/>")
                for begin, end, density in lane.spans
            ]
            lanes.append(f"<title>{escape(f'{name}: {lane.label}')}</title></g>")
            y += _LANE
        y += _GROUP_GAP
    ticks = [figure.span_s * tick / _TICKS for tick in range(_TICKS + 1)]
    return _over(figure.title, _Axis("time", "s", ticks), y, labels, lanes)


def step_line(figure: StepLine) -> str:
    """A line over steps, from 0 to the highest that counts; a higher one is cut there."""
    counted = [value for value, steady in zip(figure.values, figure.steady, strict=True) if steady]
    known = [value for value in counted if value is not None] or [
        value for value in figure.values if value is not None
    ]
    top = max(known, default=0.0) * _HEADROOM or 1.0
    first, last = figure.steps[0], figure.steps[-1]
    lines: list[list[str]] = [[]]
    for step, value in zip(figure.steps, figure.values, strict=True):
        if value is None:
            lines.append([])
            continue
        x = _ROOM * (step - first) / max(1, last - first)
        lines[-1].append(f"{x:.2f},{_LINE_HEIGHT * (1 - min(value, top) / top):.2f}")
    labels = [
        f'<text class="tick" x="{_LABEL - 10}" y="{_LINE_HEIGHT * (1 - part) + (4 if part < 1 else 11):.1f}"'
        f' text-anchor="end">{_SHOW[figure.unit](top * part)}</text>'
        for part in (0.0, 0.5, 1.0)
    ]
    ticks = [first + (max(1, last - first)) * tick / _TICKS for tick in range(_TICKS + 1)]
    drawn = [f'<polyline class="line" points="{" ".join(line)}"/>' for line in lines if line]
    return _over(figure.title, _Axis("steps", "step", ticks), _LINE_HEIGHT, labels, drawn)


class _Axis(NamedTuple):
    name: str
    """Charts that share it zoom together."""
    unit: str
    """`s` or `step`."""
    ticks: Sequence[float]


def _over(title: str, axis: _Axis, bottom: float, labels: Sequence[str], drawn: Sequence[str]) -> str:
    """What is drawn over an axis, in an element that shows all of it; to zoom, a script lets it show less."""
    grid, names = [], []
    for at, value in enumerate(axis.ticks):
        x = _LABEL + _ROOM * at / _TICKS
        anchor = "start" if at == 0 else "end" if at == _TICKS else "middle"
        grid.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom:.1f}"/>')
        names.append(
            f'<text class="tick" data-tick="{at / _TICKS:g}" x="{x:.1f}" y="{bottom + 15:.1f}"'
            f' text-anchor="{anchor}">{_tick(value, axis)}</text>'
        )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {bottom + _AXIS:.0f}" role="img" aria-label="{escape(title)}"'
        f' data-axis="{axis.name}" data-show="{axis.unit}"'
        f' data-from="{axis.ticks[0]!r}" data-to="{axis.ticks[-1]!r}">'
        f"{''.join(grid)}{''.join(names)}{''.join(labels)}"
        f'<svg x="{_LABEL}" y="0" width="{_ROOM}" height="{bottom:.1f}" viewBox="0 0 {_ROOM} {bottom:.1f}"'
        f' preserveAspectRatio="none">{"".join(drawn)}</svg></svg>'
    )


def _tick(value: float, axis: _Axis) -> str:
    """As the script writes it when the zoom is reset."""
    few = axis.ticks[-1] - axis.ticks[0] < _FEW_STEPS
    return duration(value) if axis.unit == "s" else f"step {value:.{int(few)}f}"


def zooms(figure: Figure) -> bool:
    """Whether it has an axis of steps or time, of which a part can be shown."""
    return isinstance(figure, Timeline | StepLine)


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
