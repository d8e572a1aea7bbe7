"""The form of what a check of `perfd doctor` says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    """perfd works, and sees less than it could."""
    FAIL = "fail"
    """Something that is configured or installed cannot work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The verdict of one check."""

    check: str
    level: Level
    title: str
    what: str
    mend: str = ""
    """What to do about it; empty when there is nothing to do."""
