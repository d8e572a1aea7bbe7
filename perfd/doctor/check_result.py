"""The result of a check of `perfd doctor`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import wraps
from typing import TypeAlias

from perfd.doctor.node_facts import NodeFacts


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

    check: str = ""
    """Its name, which is part of the JSON schema; set by `check`, as is its title."""
    level: Level
    title: str = ""
    what: str
    fix: str = ""
    """What to do about it; empty when nothing is needed."""


Check: TypeAlias = Callable[[NodeFacts], CheckResult]


def ok(what: str, fix: str = "") -> CheckResult:
    """All is well."""
    return CheckResult(level=Level.OK, what=what, fix=fix)


def warn(what: str, fix: str) -> CheckResult:
    """See `Level.WARN`."""
    return CheckResult(level=Level.WARN, what=what, fix=fix)


def fail(what: str, fix: str) -> CheckResult:
    """See `Level.FAIL`."""
    return CheckResult(level=Level.FAIL, what=what, fix=fix)


def check(name: str, title: str) -> Callable[[Check], Check]:
    """Give the result of a check its name and title."""

    def named(found: Check) -> Check:
        @wraps(found)
        def result(facts: NodeFacts) -> CheckResult:
            return replace(found(facts), check=name, title=title)

        return result

    return named
