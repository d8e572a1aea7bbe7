"""Numbers as people read them, in one style for terminals, reports, traces and findings.

Decimal units, one decimal; unknown values (None or NaN) are `-`. The page's functions of the same names
(web/static/format.js) return the same texts. Standard library only: agents and jobs import it without NumPy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeGuard

UNKNOWN = "-"
CONTROL_CHARACTERS = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""For the brackets of a regular expression: what a document does not need, and a terminal or reader obeys."""
_CONTROL = re.compile(f"[{CONTROL_CHARACTERS}]")
_RANKS_SHOWN = 8
"""Ranks listed in a sentence; the others are counted."""
_DURATIONS = (
    (1e-7, 1e-9, "ns"),
    (1e-3, 1e-6, "µs"),
    (10.0, 1e-3, "ms"),
    (600.0, 1.0, "s"),
    (36_000.0, 60.0, "min"),
)
"""Up to how many seconds a unit is used, and how long it is; hours above."""
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_ROUNDS_UP = 1 - 0.5e-4
"""From this share of a unit on, one decimal of the smaller unit shows 1000.0."""


def percent(ratio: float | None, digits: int = 1) -> str:
    """A ratio: `28.0%`."""
    return f"{100 * ratio:.{digits}f}%" if _known(ratio) else UNKNOWN


def signed_percent(ratio: float | None) -> str:
    """A difference, always with its sign: `+3.5%`."""
    return f"{100 * ratio:+.1f}%" if _known(ratio) else UNKNOWN


def duration(seconds: float | None) -> str:
    """A time: `36.2 µs`, `297.9 ms` below 10 s, `12.3 s` below 10 min, then minutes and hours."""
    if not _known(seconds):
        return UNKNOWN
    if not seconds:
        return "0 s"
    for limit_s, unit_s, unit in _DURATIONS:
        if abs(seconds) < limit_s - unit_s / 20:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds / 3600:.1f} h"


def moment(unix_s: float | None) -> str:
    """A time: `2026-11-25 14:03:10 UTC`."""
    if not _known(unix_s):
        return UNKNOWN
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return UNKNOWN


def data_size(size_bytes: float | None) -> str:
    """A size: `18.0 GB`."""
    return _scaled(size_bytes, "B")


def bandwidth(bytes_per_s: float | None) -> str:
    """A rate of bytes: `60.0 GB/s`."""
    return _scaled(bytes_per_s, "B/s")


def flops(operations: float | None) -> str:
    """A count of floating-point operations: `4.1 TFLOP`."""
    return _scaled(operations, "FLOP")


def flops_per_s(rate: float | None) -> str:
    """A rate of floating-point operations: `113.4 TFLOP/s`."""
    return _scaled(rate, "FLOP/s")


def power(watts: float | None) -> str:
    """Electric power: `698 W`."""
    return f"{watts:.0f} W" if _known(watts) else UNKNOWN


def count(value: float | None, digits: int = 0) -> str:
    """A number with thousands separators: `55,008`."""
    return f"{value:,.{digits}f}" if _known(value) else UNKNOWN


def rank_names(ranks: Sequence[int]) -> str:
    """The first ranks by number, and how many more there are: `ranks 0, 1, 2 and 5 more`."""
    shown = ", ".join(map(str, ranks[:_RANKS_SHOWN]))
    more = f" and {len(ranks) - _RANKS_SHOWN} more" if len(ranks) > _RANKS_SHOWN else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


def kind_of_source(source: str | None) -> str:
    """A source without what changes from step to step: which timers there are, how old a capture is."""
    kind = (source or "").partition(":")[0]
    return "capture" if kind.startswith("capture ") else kind


def _scaled(value: float | None, unit: str) -> str:
    if not _known(value):
        return UNKNOWN
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor * _ROUNDS_UP:
            return f"{value / factor:,.1f} {prefix}{unit}"
    return f"{value:.0f} {unit}"


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and not math.isnan(value)


def escaped_controls(text: str) -> str:
    """A document whose characters that a terminal obeys, or that turn the direction of writing, are escapes.

    Lines, tabs and the spaces of typesetting stay.
    """
    return _CONTROL.sub(lambda found: printable_text(found[0]), text)


def printable_text(text: str) -> str:
    """The text with escapes for control characters and for those that turn the direction of writing."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
