"""Label matchers: `=`, `!=` and the fully anchored `=~`, `!~` of Prometheus.

Prometheus matches with RE2. Python's `re` reads nearly the same language; syntax that
only one of the two has, or that they read differently, is refused.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfd.metrics.series import SeriesKey

METRIC_NAME_LABEL = "__name__"

_ESCAPES = frozenset("dDwWsSbBAafnrtvx")
_MAX_REPEAT = 1000
"""RE2 refuses a larger count in `{n,m}`."""

_GROUP = re.compile(r"\(\?(?!:|P<[A-Za-z_]|[ims]+[:)])")
_POSSESSIVE = re.compile(r"[*+?}]\+")
_REPEAT = re.compile(r"\{(\d*)(?:,(\d*))?\}")


def compile_regex(pattern: str) -> re.Pattern[str]:
    """A pattern to use with `fullmatch`; raises `ValueError` with a sentence when RE2 would differ."""
    bare = _without_escapes_and_classes(pattern)
    if group := _GROUP.search(bare):
        raise ValueError(f"RE2 has no group of the kind {bare[group.start() : group.start() + 4]!r}")
    if _POSSESSIVE.search(bare):
        raise ValueError("RE2 has no possessive quantifier such as `a++`")
    for repeat in _REPEAT.finditer(bare):
        if not repeat[1]:
            raise ValueError(f"write the lower bound of {repeat[0]!r}: RE2 reads it as plain text")
        if max(int(bound) for bound in repeat.groups() if bound) > _MAX_REPEAT:
            raise ValueError(f"RE2 repeats at most {_MAX_REPEAT} times")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(pattern, re.ASCII)
    except (re.error, FutureWarning, DeprecationWarning) as error:
        raise ValueError(f"the regular expression is not valid here: {error}") from error


def _without_escapes_and_classes(pattern: str) -> str:
    """The pattern with each escape and each `[...]` replaced by a letter, both checked on the way."""
    kept: list[str] = []
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            _check_escape(pattern, position)
            position += 1
            kept.append("e")
        elif character == "[":
            position = _end_of_class(pattern, position)
            kept.append("c")
        else:
            kept.append(character)
        position += 1
    return "".join(kept)


def _check_escape(pattern: str, position: int) -> None:
    escaped = pattern[position + 1 : position + 2]
    if escaped.isalnum() and escaped not in _ESCAPES:
        raise ValueError(f"the escape `\\{escaped}` is not supported: RE2 and Python differ")
    if escaped == "x" and not re.match(r"[0-9A-Fa-f]{2}", pattern[position + 2 :]):
        raise ValueError("write two hexadecimal digits after `\\x`")


def _end_of_class(pattern: str, start: int) -> int:
    """The position of the `]` that closes the class opened at `start`, or the end of the pattern."""
    position = start + 1
    if pattern[position : position + 1] == "^":
        position += 1
    first = position
    while position < len(pattern):
        if pattern[position] == "\\":
            _check_escape(pattern, position)
            position += 1
        elif pattern.startswith("[:", position):
            raise ValueError("POSIX classes such as `[[:alpha:]]` are not supported: write out the range")
        elif pattern[position] == "]" and position > first:
            return position
        position += 1
    return position


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on a label; `op` is `=`, `!=`, `=~` or `!~`. A label that is absent is empty."""

    label: str
    op: str
    value: str

    def predicate(self) -> Callable[[str], bool]:
        """A test of the label's value; raises `ValueError` as `compile_regex` does."""
        value = self.value
        if self.op == "=":
            return value.__eq__
        if self.op == "!=":
            return value.__ne__
        pattern = compile_regex(value)
        if self.op == "=~":
            return lambda text: pattern.fullmatch(text) is not None
        return lambda text: pattern.fullmatch(text) is None


class MatcherSet:
    """All matchers of one selector."""

    def __init__(self, matchers: Sequence[Matcher]) -> None:
        self.matchers = tuple(matchers)
        self.name = next(
            (m.value for m in matchers if m.label == METRIC_NAME_LABEL and m.op == "="),
            None,
        )
        """The metric's name, when the selector fixes it."""
        self._predicates = [(m.label, m.predicate()) for m in matchers]
        self.is_name_only = self.name is not None and len(self.matchers) == 1
        """Whether all series of that name match."""

    def matches(self, key: SeriesKey) -> bool:
        """Whether every matcher accepts the series."""
        return all(
            accepts(key.name if label == METRIC_NAME_LABEL else key.label(label))
            for label, accepts in self._predicates
        )
