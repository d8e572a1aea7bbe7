"""The result of a check of `perfd doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The severity of a result."""

    OK = "ok"
    WARN = "warn"
    """perfd works, but measures less than it could."""
    FAIL = "fail"
    """Something configured or installed does not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one check."""

    check: str
    level: Level
    title: str
    what: str
    fix: str = ""
    """What to do about it; empty when nothing is needed."""
