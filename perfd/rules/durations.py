"""Durations as Prometheus writes them: `90s`, `1h30m`, `500ms`."""

from __future__ import annotations

import re

_UNITS_MS = {
    "y": 365 * 86_400_000,
    "w": 7 * 86_400_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
    "ms": 1,
}
_DURATION = re.compile("".join(rf"(?:(\d+){unit})?" for unit in _UNITS_MS), re.ASCII)


def parse_duration(text: str) -> int:
    """Milliseconds of a duration; raises `ValueError` with a sentence. `0` needs no unit."""
    if text == "0":
        return 0
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError(
            f"{text!r} is not a duration: write units from large to small, as in 30s, 5m or 1h30m"
        )
    return sum(
        int(count) * factor for count, factor in zip(match.groups(), _UNITS_MS.values(), strict=True) if count
    )


def format_duration(milliseconds: int) -> str:
    """The shortest way to write a duration."""
    if milliseconds == 0:
        return "0s"
    parts = []
    for unit, factor in _UNITS_MS.items():
        count, rest = divmod(milliseconds, factor)
        # Years and weeks only where they are exact, as Prometheus does.
        if count and (unit not in "yw" or rest == 0):
            parts.append(f"{count}{unit}")
            milliseconds = rest
    return "".join(parts)
