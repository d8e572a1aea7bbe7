"""Verdicts against truth: counts, and what so few of them can prove."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One judged run."""

    name: str
    truth: frozenset[int]
    """Ranks to blame, empty for a job where none is."""
    blamed: frozenset[int] | None
    """Ranks that were blamed; None when the judge had no input."""
    kinds: tuple[str, ...] = ()
    seconds: float = 0.0
    small: bool = False
    """Whether the fault costs so little that who is silent about it misses nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """Counts of cases. A wrong name is a miss and a false alarm at once."""

    found: int = 0
    missed: int = 0
    silent: int = 0
    """No rank to blame, and none blamed."""
    false_alarms: int = 0
    no_input: int = 0
    small: int = 0
    """Small faults, and nobody blamed."""


def confusion(cases: Iterable[Case]) -> Confusion:
    """Count cases; one without input is counted apart and, when there was a rank to blame, as missed too."""
    found = missed = silent = false_alarms = no_input = small = 0
    for case in cases:
        blamed = case.blamed or frozenset()
        no_input += case.blamed is None
        found += bool(case.truth) and blamed == case.truth
        overlooked = case.small and not blamed and case.blamed is not None
        small += overlooked
        missed += bool(case.truth) and not case.truth <= blamed and not overlooked
        false_alarms += bool(blamed - case.truth)
        silent += not case.truth and not blamed and case.blamed is not None
    return Confusion(
        found=found, missed=missed, silent=silent, false_alarms=false_alarms, no_input=no_input, small=small
    )


def wilson(hits: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a proportion, by default at 95% (Wilson 1927)."""
    if not of:
        return 0.0, 1.0
    ratio = hits / of
    middle = (ratio + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(ratio * (1 - ratio) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return max(0.0, middle - half), min(1.0, middle + half)
