"""A rules file with line and column for errors in expressions and templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

import yaml

from perfd.config.yaml_source import Mistake, YamlSource
from perfd.rules.durations import parse_duration
from perfd.rules.problems import TextError

__all__ = ["Entries", "Mistake", "RulesSource"]

Entries: TypeAlias = Mapping[str, tuple[yaml.ScalarNode, yaml.Node]]
"""The nodes of key and value, by key."""
_T = TypeVar("_T")


class RulesSource(YamlSource):
    """The text of a file, and the errors found in it so far."""

    __slots__ = ()

    def text_of(self, entries: Entries, key: str) -> str | None:
        """The text of an entry; None if it is absent or, which is a mistake, no text."""
        return self.scalar(entries[key][1], f"`{key}`") if key in entries else None

    def list_of(self, entries: Entries, key: str, item: Callable[[yaml.Node], _T]) -> list[_T]:
        """What `item` makes of each item of an entry; empty if it is absent."""
        return [item(node) for node in self.items(entries[key][1], f"`{key}`")] if key in entries else []

    def duration_ms(self, entries: Entries, key: str) -> int | None:
        """A duration in milliseconds; None if it is absent or, which is a mistake, not a duration."""
        text = self.text_of(entries, key)
        if text is None:
            return None
        try:
            duration_ms = parse_duration(text)
            float(duration_ms)
        except OverflowError:
            self.refuse(entries[key][1], f"`{key}`: it is too long")
        except ValueError as error:
            self.refuse(entries[key][1], f"`{key}`: {error}")
        else:
            return duration_ms
        return None

    def refuse_text(self, node: yaml.Node, error: TextError, prefix: str) -> None:
        """Note each problem of an expression or template at its place."""
        for problem in error.problems:
            place = self._place_in(node, problem.offset) if isinstance(node, yaml.ScalarNode) else None
            if place is None:
                self.refuse(node, f"{prefix}{problem.message}")
            else:
                self.note(*place, f"{prefix}{problem.message}")

    def _place_in(self, node: yaml.ScalarNode, offset: int) -> tuple[int, int] | None:
        """Line and column of a character of a scalar's value, None when escapes make that unclear.

        YAML changes only white space between file and value, so the n-th visible
        character of the value is the n-th visible one of the file.
        """
        start, end = node.start_mark.index, node.end_mark.index
        if node.style in {"|", ">"}:
            start = self.text.index("\n", start) + 1
        elif node.style:
            start += 1
        value = node.value
        visible = "".join(value.split())
        if "".join(self.text[start:end].split())[: len(visible)] != visible:
            return None
        wanted = len("".join(value[:offset].split()))
        beyond = offset >= len(value.rstrip())
        position = start
        for position in range(start, end):
            if self.text[position].isspace():
                continue
            if wanted == int(beyond):
                break
            wanted -= 1
        position += int(beyond)
        line_start = self.text.rfind("\n", 0, position) + 1
        return self.text.count("\n", 0, position) + 1, position - line_start + 1
