"""A YAML file read so that every mistake in it can be told with line and column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from perfd.rules.problems import TextError


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """Something wrong in a file; line and column count from 1."""

    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"


@dataclass(slots=True)
class YamlSource:
    """The text of a file, and the mistakes found in it so far."""

    name: str
    text: str
    mistakes: list[Mistake] = field(default_factory=list)

    def root(self) -> yaml.Node | None:
        """The only document of the file; None when it is empty or not YAML, which is then noted."""
        try:
            return yaml.compose(self.text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
            self.note(line, column, f"this is not YAML: {error.problem or error.context}")
        except yaml.YAMLError as error:
            self.note(1, 1, f"this is not YAML: {error}")
        return None

    def note(self, line: int, column: int, message: str) -> None:
        """Note a mistake at a place."""
        self.mistakes.append(Mistake(self.name, line, column, message))

    def refuse(self, node: yaml.Node, message: str, offset: int | None = None) -> None:
        """Note a mistake at a node, or at a character of a scalar's value."""
        line, column = node.start_mark.line + 1, node.start_mark.column + 1
        if offset is not None and isinstance(node, yaml.ScalarNode):
            line, column = self._place_in(node, offset) or (line, column)
        self.note(line, column, message)

    def refuse_text(self, node: yaml.Node, error: TextError, prefix: str) -> None:
        """Note each problem of an expression or template at its place."""
        for problem in error.problems:
            self.refuse(node, f"{prefix}{problem.message}", problem.offset)

    def mapping(
        self, node: yaml.Node, what: str, known: Sequence[str] | None = None
    ) -> dict[str, tuple[yaml.ScalarNode, yaml.Node]]:
        """The entries of a mapping by key, with the nodes of key and value; any key when `known` is None."""
        entries: dict[str, tuple[yaml.ScalarNode, yaml.Node]] = {}
        if not isinstance(node, yaml.MappingNode):
            if not is_null(node):
                self.refuse(node, f"{what} must be a mapping of keys to values")
            return entries
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.refuse(key, f"a key of {what} must be plain text")
            elif key.value in entries:
                self.refuse(key, f"{key.value!r} is given twice")
            elif known is not None and key.value not in known:
                self.refuse(key, f"{key.value!r} is not a key of {what}; the keys are {', '.join(known)}")
            else:
                entries[key.value] = (key, value)
        return entries

    def items(self, node: yaml.Node, what: str) -> Iterator[yaml.Node]:
        """The items of a list."""
        if isinstance(node, yaml.SequenceNode):
            yield from node.value
        elif not is_null(node):
            self.refuse(node, f"{what} must be a list")

    def scalar(self, node: yaml.Node, what: str) -> str | None:
        """The text of a scalar, empty for null; None, and a mistake, when it is a list or mapping."""
        if isinstance(node, yaml.ScalarNode):
            return "" if is_null(node) else str(node.value)
        self.refuse(node, f"{what} must be plain text")
        return None

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


def is_null(node: yaml.Node) -> bool:
    """Whether a node is YAML's null, which also an empty value is."""
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def read_source(path: Path) -> YamlSource:
    """The text of a file; when it cannot be read, an empty one with that mistake."""
    try:
        return YamlSource(str(path), path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        return YamlSource(str(path), "", [Mistake(str(path), 1, 1, f"this file cannot be read: {reason}")])
