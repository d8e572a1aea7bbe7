"""A part of a graph of operations as SVG: what an operation reads, and what reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 230, 46
"""Of a box, in pixels, with its label in two lines."""
_SPACE_X, _SPACE_Y = 26, 44
"""Between boxes, in pixels."""
_MOST_CHARACTERS = 32
"""Longest label that fits into its box."""
_STYLE = (
    "<style>svg{font:12px system-ui,sans-serif}rect{fill:#eef2f7;stroke:#8a97a8}"
    ".chosen{fill:#ffe9b8;stroke:#b07a00}"
    "path{fill:none;stroke:#8a97a8}text{fill:#1c2733}.detail{fill:#5a6675}</style>"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """One operation."""

    name: str
    label: str
    detail: str
    """The second line: its shape."""
    level: int
    """Rows from the top."""
    chosen: bool = False


def graph_svg(nodes: Sequence[GraphNode], edges: Sequence[tuple[str, str]], title: str) -> str:
    """Nodes in rows by level, edges from reader to read reversed: data flows down."""
    rows: dict[int, list[GraphNode]] = {}
    for node in nodes:
        rows.setdefault(node.level, []).append(node)
    widest = max((len(row) for row in rows.values()), default=1)
    whole = widest * (_WIDTH + _SPACE_X) + _SPACE_X
    places: dict[str, tuple[float, float]] = {}
    for at, level in enumerate(sorted(rows)):
        row = _ordered(rows[level], edges, places)
        left = (whole - len(row) * (_WIDTH + _SPACE_X) + _SPACE_X) / 2
        for number, node in enumerate(row):
            places[node.name] = (
                left + number * (_WIDTH + _SPACE_X),
                _SPACE_Y / 2 + at * (_HEIGHT + _SPACE_Y),
            )
    height = len(rows) * (_HEIGHT + _SPACE_Y)
    parts = [_edge(places[source], places[target]) for source, target in edges]
    parts += [_node(node, *places[node.name]) for node in nodes]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole:.0f} {height:.0f}" width="{whole:.0f}"'
        f' role="img" aria-label="{escape(title)}">{_STYLE}{"".join(parts)}</svg>\n'
    )


def _ordered(
    row: Sequence[GraphNode], edges: Sequence[tuple[str, str]], places: Mapping[str, tuple[float, float]]
) -> list[GraphNode]:
    """Below what they read, so that fewer edges cross."""

    def middle(node: GraphNode) -> float:
        above = [places[source][0] for source, target in edges if target == node.name and source in places]
        return sum(above) / len(above) if above else 0.0

    return sorted(row, key=middle)


def _edge(source: tuple[float, float], target: tuple[float, float]) -> str:
    x, y = source[0] + _WIDTH / 2, source[1] + _HEIGHT
    to_x, to_y = target[0] + _WIDTH / 2, target[1]
    bend = f"{x:.0f} {y + _SPACE_Y:.0f} {to_x:.0f} {to_y - _SPACE_Y:.0f}"
    return f'<path d="M{x:.0f} {y:.0f}C{bend} {to_x:.0f} {to_y:.0f}"/>'


def _node(node: GraphNode, x: float, y: float) -> str:
    mark = ' class="chosen"' if node.chosen else ""
    return (
        f"<g><title>{escape(f'{node.label} {node.detail}')}</title>"
        f'<rect{mark} x="{x:.0f}" y="{y:.0f}" width="{_WIDTH}" height="{_HEIGHT}" rx="5"/>'
        f'<text x="{x + 8:.0f}" y="{y + 19:.0f}">{escape(_short(node.label))}</text>'
        f'<text class="detail" x="{x + 8:.0f}" y="{y + 36:.0f}">{escape(_short(node.detail))}</text></g>'
    )


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."
