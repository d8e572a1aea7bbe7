"""Rounds numbers to their significant digits: most data of a page is numbers."""

from __future__ import annotations

from collections.abc import Iterable


def significant(values: Iterable[float], digits: int) -> list[float]:
    """Each value with so many significant digits; NaN stays NaN."""
    return [float(f"{value:.{digits}g}") for value in values]
