"""A rules file with line and column for errors in expressions and templates."""

from __future__ import annotations

from pathlib import Path

import yaml

from perfd.config.yaml_source import Mistake, YamlSource, is_null
from perfd.rules.problems import TextError

__all__ = ["Mistake", "RulesSource", "is_null", "read_source"]


class RulesSource(YamlSource):
    """The text of a file, and the errors found in it so far."""

    __slots__ = ()

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


def read_source(path: Path) -> RulesSource:
    """The text of a file; if it cannot be read, an empty one with that error."""
    return RulesSource.read(path)
