"""The image of a roofline as SVG, for a report and as a separate file."""

from __future__ import annotations

import math
from html import escape

from perfd.formatting import percent
from perfd.report.report_model import Roofline

KINDS = {
    "compute_bound": "compute bound",
    "memory_bound": "memory bound",
    "latency_bound": "latency bound",
}
CSS = """
:root { color-scheme: light dark; }
svg { background: #fff; --surface: #fff; --ink: #21201c; --muted: #6b6a64; --line: #dedcd4;
  --compute: #2a78d6; --communication: #eb6834; --memory: #1baf7a; }
@media (prefers-color-scheme: dark) { svg { background: #1f1f1d; --surface: #1f1f1d; --ink: #f2f1ec;
  --muted: #a3a199; --line: #37362f; --compute: #4b90e2; --communication: #e2743f; --memory: #24a97f; } }
text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--ink); }
.tick { fill: var(--muted); font-size: 11px; }
.grid { stroke: var(--line); stroke-width: 1; }
"""
"""Styles of a separate image; in a page the page's theme applies."""
PLOT_CSS = """
svg .roof { stroke: var(--ink); stroke-width: 2; fill: none; }
svg .limit { stroke: var(--muted); stroke-width: 1; stroke-dasharray: 4 4; fill: none; }
svg .point { stroke-width: 2; }
.compute_bound { fill: var(--compute); stroke: var(--compute); background: var(--compute); }
.memory_bound { fill: var(--memory); stroke: var(--memory); background: var(--memory); }
.latency_bound { fill: var(--communication); stroke: var(--communication); background: var(--communication); }
svg .name { paint-order: stroke; stroke: var(--surface, transparent); stroke-width: 4; }
svg .point.least { fill: none; }
"""

_WIDTH, _HEIGHT = 960, 420
"""Of the picture, in pixels."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 24, 16, 48
"""Margins in pixels, for the axes' numbers."""
_LABELLED = 12
"""More points than this get no labels; their titles have the text."""


def plot(figure: Roofline) -> str:
    """The `svg` element."""
    axes = _Axes(figure)
    parts = [*_grid(axes, figure), *_roofs(axes, figure)]
    for number, point in enumerate(figure.points):
        height = min(1.0, point.intensity) if point.speed is None else point.speed
        x, y = axes.x(point.intensity), axes.y(height)
        title = "at most, as no time was given" if point.speed is None else f"{percent(height)} of the peak"
        least = " least" if point.speed is None else ""
        parts.append(
            f'<circle class="point {point.kind}{least}" cx="{x:.1f}" cy="{y:.1f}" r="6">'
            f"<title>{escape(f'{point.label}: {KINDS[point.kind]}, {title}')}</title></circle>"
        )
        if len(figure.points) <= _LABELLED:
            anchor = "end" if x > _WIDTH * 0.6 else "start"
            parts.append(
                f'<text class="name" x="{x:.1f}" y="{y + 22 + 14 * (number % 2):.1f}" text-anchor="{anchor}">'
                f"{escape(point.label)}</text>"
            )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' aria-label="{escape(figure.title)}">{"".join(parts)}</svg>'
    )


def to_svg(figure: Roofline) -> str:
    """The image as a separate file, which follows the viewer's theme."""
    return plot(figure).replace(">", f"><style>{CSS}{PLOT_CSS}</style>", 1) + "\n"


class _Axes:
    """Both logarithmic, wide enough for every point."""

    def __init__(self, figure: Roofline) -> None:
        across = [1.0, *(point.intensity for point in figure.points)]
        up = [1.0, *(point.speed for point in figure.points if point.speed)]
        up += [min(1.0, point.intensity) for point in figure.points if point.speed is None]
        self.left = math.floor(math.log10(min(across)) - 0.3)
        self.right = math.ceil(math.log10(max(across)) + 0.3)
        self.low = math.floor(math.log10(min(up)) - 0.2)
        self._high = 0.2

    def x(self, intensity: float) -> float:
        """Where an intensity is."""
        share = (math.log10(intensity) - self.left) / (self.right - self.left)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, speed: float) -> float:
        """Where a share of the peak is."""
        share = (math.log10(speed) - self.low) / (self._high - self.low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP)


def _grid(axes: _Axes, figure: Roofline) -> list[str]:
    parts = []
    bottom = _HEIGHT - _BOTTOM
    for power in range(axes.left, axes.right + 1):
        x = axes.x(10.0**power)
        value = _number(10.0**power * (figure.ridge_flops_per_byte or 1.0))
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{value}</text>')
    for power in range(axes.low, 1):
        y = axes.y(10.0**power)
        value = (
            f"{10.0 ** (power + 2):.3g}%"
            if figure.peak_flops_per_s is None
            else _number(10.0**power * figure.peak_flops_per_s / 1e12)
        )
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value}</text>')
    across = "FLOP/byte" if figure.ridge_flops_per_byte else "intensity, of the ridge's"
    up = "TFLOP/s" if figure.peak_flops_per_s else "of the peak"
    parts.append(
        f'<text class="tick" x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 10}" text-anchor="end">{across}</text>'
    )
    parts.append(f'<text class="tick" x="{_LEFT + 6}" y="{_TOP + 2}">{up}</text>')
    return parts


def _roofs(axes: _Axes, figure: Roofline) -> list[str]:
    """The roof, and the two lines below it that the verdict goes by."""
    parts = []
    levels = (
        (1.0, "roof", "the roof: min(peak, bandwidth x intensity)"),
        (figure.limit_ratio, "limit", f"{figure.limit_ratio:.0%}: at its limit above"),
        (figure.latency_ratio, "limit", f"{figure.latency_ratio:.0%}: latency bound below"),
    )
    for level, style, title in levels:
        # The slope enters where it is as low as the picture, or at its left edge.
        begin = max(10.0**axes.left, 10.0**axes.low / level)
        corners = ((begin, begin * level), (1.0, level), (10.0**axes.right, level))
        line = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in corners)
        parts.append(f'<polyline class="{style}" points="{line}"><title>{escape(title)}</title></polyline>')
        parts.append(
            f'<text class="tick" x="{_WIDTH - _RIGHT - 4}" y="{axes.y(level) - 4:.1f}" text-anchor="end">'
            f"{level:.0%}</text>"
        )
    return parts


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
