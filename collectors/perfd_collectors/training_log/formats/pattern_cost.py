"""How many steps a backtracking matcher takes for a pattern, counted and not timed."""

# ruff: noqa: ANN401, PLR0911, SLF001  (the nodes of a parsed expression have no types)

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

_MOST_STEPS = 60_000
"""At which the count ends: the pattern is too slow by far. Chosen."""
_RECURSION = 100_000
"""The count recurses once per character and item, of texts of at most a few hundred characters."""
_UNBOUNDED_FROM = 64
"""A repeat of so many characters and more counts as unbounded."""
_SIZE = 32
"""Characters of the shorter text; the longer one has twice as many. Chosen."""
_FILLERS = (
    *(" ", "a", "1", ".", "-", "/"),
    *("a ", "1,", "[", "|", "=", ":", "a.", "'a', ", "1 ", "_", "(", "{", "<"),
)
_FAILS = ("\x00", "")
_OF_ONE_CHARACTER = frozenset({c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN})
"""What matches exactly one character."""
Continue = Callable[[int], bool]


class TooManyStepsError(Exception):
    """The count was given up."""


class StepCounter:
    """Matches one pattern as `re` does, without its shortcuts."""

    def __init__(self, pattern: str, flags: int) -> None:
        self._tree = parser.parse(pattern, flags)
        flags = self._tree.state.flags
        self._ignores_case, self._dot_takes_newlines, self._begins_after_newlines = (
            bool(flags & flag) for flag in (re.IGNORECASE, re.DOTALL, re.MULTILINE)
        )
        self._known: dict[tuple[int, str], bool] = {}
        self._groups: dict[int | None, str | None] = {}
        self.steps = 0

    def steps_on(self, text: str, *, anywhere: bool) -> int:
        """How many steps the regular expression takes on a text, at its start or anywhere in it."""
        self._text, self.steps = text, 0
        self._groups.clear()
        starts = range(len(text) + 1) if anywhere else range(1)
        try:
            any(self._sequence(self._tree.data, 0, start, lambda _: True) for start in starts)
        except TooManyStepsError:
            self.steps = _MOST_STEPS
        return self.steps

    def pumps(self) -> Iterator[tuple[str, str]]:
        """For each long repeat, a text that leads to it and one that it repeats."""
        yield from _pumps(self._tree, "")

    def _sequence(self, items: list[Any], index: int, at: int, go_on: Continue) -> bool:
        if index == len(items):
            return go_on(at)
        return self._item(items[index], at, lambda end: self._sequence(items, index + 1, end, go_on))

    def _item(self, item: Any, at: int, go_on: Continue) -> bool:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise TooManyStepsError
        op, argument = item
        if op in _OF_ONE_CHARACTER:
            return at < len(self._text) and self._is(item, self._text[at]) and go_on(at + 1)
        if op is c.BRANCH:
            return any(self._sequence(one.data, 0, at, go_on) for one in argument[1])
        if op is c.SUBPATTERN:
            group, *_, inner = argument

            def close(end: int) -> bool:
                before = self._groups.get(group)
                self._groups[group] = self._text[at:end]
                if go_on(end):
                    return True
                self._groups[group] = before
                return False

            return self._sequence(inner.data, 0, at, close)
        if op in {c.MAX_REPEAT, c.MIN_REPEAT}:
            return self._repeat(argument, 0, at, go_on, lazy=op is c.MIN_REPEAT)
        if op in {c.ASSERT, c.ASSERT_NOT}:
            direction, inner = argument
            if direction < 0:
                width = inner.getwidth()[0]
                holds = at >= width and self._sequence(inner.data, 0, at - width, lambda end: end == at)
            else:
                holds = self._sequence(inner.data, 0, at, lambda _: True)
            return holds is (op is c.ASSERT) and go_on(at)
        if op is c.AT:
            return self._at(argument, at) and go_on(at)
        if op is c.GROUPREF:
            text = self._groups.get(argument) or ""
            return self._text.startswith(text, at) and go_on(at + len(text))
        raise NotImplementedError(op)

    def _repeat(self, argument: Any, count: int, at: int, go_on: Continue, *, lazy: bool) -> bool:
        low, high, inner = argument
        if len(inner.data) == 1 and inner.data[0][0] in _OF_ONE_CHARACTER:
            return self._repeat_one(low, high, inner.data[0], at, go_on, lazy=lazy)

        def again(end: int) -> bool:
            return end > at and self._repeat(argument, count + 1, end, go_on, lazy=lazy)

        if lazy and count >= low and go_on(at):
            return True
        if count < high and self._sequence(inner.data, 0, at, again):
            return True
        return not lazy and count >= low and go_on(at)

    def _repeat_one(self, low: int, high: int, item: Any, at: int, go_on: Continue, *, lazy: bool) -> bool:
        most = at
        while most < len(self._text) and most - at < high and self._is(item, self._text[most]):
            most += 1
            self.steps += 1
        ends = range(at + low, most + 1)
        for end in ends if lazy else reversed(ends):
            self.steps += 1
            if self.steps > _MOST_STEPS:
                raise TooManyStepsError
            if go_on(end):
                return True
        return False

    def _is(self, item: Any, char: str) -> bool:
        # Asked for thousands of times about few characters. The items live as long as this.
        key = id(item), char
        if (known := self._known.get(key)) is None:
            known = self._known[key] = self._matches(item, char)
        return known

    def _matches(self, item: Any, char: str) -> bool:
        op, argument = item
        if op is c.ANY:
            return char != "\n" or self._dot_takes_newlines
        if op is c.LITERAL or op is c.NOT_LITERAL:
            same = self._same(argument, char)
            return same is (op is c.LITERAL)
        negate = argument[0][0] is c.NEGATE
        return any(self._member(one, char) for one in argument if one[0] is not c.NEGATE) is not negate

    def _member(self, member: Any, char: str) -> bool:
        op, argument = member
        if op is c.LITERAL:
            return self._same(argument, char)
        if op is c.RANGE:
            both = {char, char.lower(), char.upper()} if self._ignores_case else {char}
            return any(len(one) == 1 and argument[0] <= ord(one) <= argument[1] for one in both)
        name = str(argument)
        if "DIGIT" in name:
            known = char.isdigit()
        else:
            known = char.isspace() if "SPACE" in name else char.isalnum() or char == "_"
        return known is not ("NOT" in name)

    def _same(self, code: int, char: str) -> bool:
        if self._ignores_case:
            return chr(code).lower() == char.lower()
        return chr(code) == char

    def _at(self, where: Any, at: int) -> bool:
        name, text = str(where), self._text
        if "BOUNDARY" in name:
            word = [0 <= i < len(text) and (text[i].isalnum() or text[i] == "_") for i in (at - 1, at)]
            return (word[0] != word[1]) is not ("NON" in name)
        if "BEGINNING" in name:
            return at == 0 or (self._begins_after_newlines and text[at - 1] == "\n")
        return at == len(text) or (at == len(text) - 1 and text[at] == "\n")


def growth(pattern: re.Pattern[Any], *, anywhere: bool) -> tuple[float, str]:
    """By what factor the steps grow at most when a text doubles, and the text; near 2 when linear."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _RECURSION))
    try:
        return _growth(pattern, anywhere=anywhere)
    finally:
        sys.setrecursionlimit(limit)


def _growth(pattern: re.Pattern[Any], *, anywhere: bool) -> tuple[float, str]:
    source = pattern.pattern
    text = source.decode("latin-1") if isinstance(source, bytes) else source
    counter = StepCounter(text, pattern.flags & ~re.UNICODE & ~re.ASCII & ~re.DEBUG)
    worst = (0.0, "")
    pumps = list(counter.pumps())
    prefixes = list(dict.fromkeys(["", *(prefix for prefix, _ in pumps)]))
    repeated = list(dict.fromkeys(one for pair in pumps for one in pair if one))
    for prefix in prefixes:
        for pump in [*repeated, *(_FILLERS[:6] if prefix else _FILLERS)]:
            for fail in _FAILS:
                count = max(6, _SIZE // len(pump))
                small = counter.steps_on(prefix + pump * count + fail, anywhere=anywhere)
                if small < 4 * _SIZE:
                    continue
                large = counter.steps_on(prefix + pump * (2 * count) + fail, anywhere=anywhere)
                if large >= _MOST_STEPS:
                    return math.inf, f"{prefix!r} + {pump!r} * n + {fail!r}"
                if large / small > worst[0]:
                    worst = large / small, f"{prefix!r} + {pump!r} * n + {fail!r}"
    return worst


def _pumps(items: Any, prefix: str) -> Iterator[tuple[str, str]]:
    for op, argument in items:
        if op in {c.MAX_REPEAT, c.MIN_REPEAT}:
            if argument[1] >= _UNBOUNDED_FROM:
                yield prefix, _sample(argument[2])
            yield from _pumps(argument[2], prefix)
        elif op is c.SUBPATTERN:
            yield from _pumps(argument[-1], prefix)
        elif op is c.BRANCH:
            for one in argument[1]:
                yield from _pumps(one, prefix)
        prefix += _sample([(op, argument)])


def _sample(items: Any) -> str:
    """A short text that the items match, roughly."""
    out = ""
    for op, argument in items:
        if op is c.LITERAL:
            out += chr(argument)
        elif op is c.ANY:
            out += "a"
        elif op is c.NOT_LITERAL:
            out += "a" if argument != ord("a") else "b"
        elif op is c.IN:
            out += _char_of(argument)
        elif op is c.BRANCH:
            out += _sample(argument[1][0])
        elif op is c.SUBPATTERN:
            out += _sample(argument[-1])
        elif op in {c.MAX_REPEAT, c.MIN_REPEAT}:
            out += _sample(argument[2]) * max(1, argument[0])
    return out


def _char_of(members: Any) -> str:
    counter = StepCounter("", 0)
    return next((char for char in "a1 A.-_/:,'\"=+\t%()[]" if counter._matches((c.IN, members), char)), "~")
