"""A row of numbers as one line of characters: pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_HEIGHTS = "▁▂▃▄▅▆▇█"
_FLAT = _HEIGHTS[3]
_LEAST_RANGE = 0.2
"""Of the largest value: numbers that differ by less look flat, so that noise does not look like a change."""


def sparkline(values: Sequence[float | None], width: int) -> str:
    """At most `width` characters, the newest values last; a space for an unknown one, nothing of none."""
    finite = [value if value is not None and math.isfinite(value) else None for value in values]
    shown = _cut(finite, width)
    known = [value for value in shown if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    spread, top = high - low, len(_HEIGHTS) - 1
    if spread <= _LEAST_RANGE * max(abs(low), abs(high)):
        return "".join(" " if value is None else _FLAT for value in shown)
    return "".join(
        " " if value is None else _HEIGHTS[round(top * ((value - low) / spread))] for value in shown
    )


def _cut(values: Sequence[float | None], width: int) -> list[float | None]:
    """As many as there is room for: the largest of those that share a place."""
    if len(values) <= width:
        return list(values)
    edges = [len(values) * place // width for place in range(width + 1)]
    groups = [values[start:end] for start, end in pairwise(edges)]
    return [max((value for value in group if value is not None), default=None) for group in groups]
