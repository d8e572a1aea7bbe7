"""The result of a check of `perfd doctor`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps

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

    check: str
    level: Level
    title: str
    what: str
    fix: str = ""
    """What to do about it; empty when nothing is needed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one check found; see `CheckResult`."""

    level: Level
    what: str
    fix: str = ""


def ok(what: str, fix: str = "") -> Outcome:
    """All is well."""
    return Outcome(Level.OK, what, fix)


def warn(what: str, fix: str) -> Outcome:
    """See `Level.WARN`."""
    return Outcome(Level.WARN, what, fix)


def fail(what: str, fix: str) -> Outcome:
    """See `Level.FAIL`."""
    return Outcome(Level.FAIL, what, fix)


def check(
    name: str, title: str
) -> Callable[[Callable[[NodeFacts], Outcome]], Callable[[NodeFacts], CheckResult]]:
    """Give the outcome of a check its name, which is part of the JSON schema, and its title."""

    def named(found: Callable[[NodeFacts], Outcome]) -> Callable[[NodeFacts], CheckResult]:
        @wraps(found)
        def result(facts: NodeFacts) -> CheckResult:
            one = found(facts)
            return CheckResult(check=name, level=one.level, title=title, what=one.what, fix=one.fix)

        return result

    return named
