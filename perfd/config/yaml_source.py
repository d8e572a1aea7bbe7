"""Reads a YAML file and reports mistakes with line and column."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from perfd.errors import PerfdError
from perfd.sandbox.named_files import read_bounded

try:
    from yaml.cyaml import CParser  # type: ignore[attr-defined]  # its stubs lack it
except ImportError:  # PyYAML was built without libyaml.
    _Loader: Any = yaml.SafeLoader
else:

    class _Loader(yaml.composer.Composer, CParser, yaml.resolver.Resolver):  # type: ignore[no-redef]
        """libyaml parses ten times as fast; its own composer crashes the process at deep nesting."""

        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            yaml.composer.Composer.__init__(self)
            yaml.resolver.Resolver.__init__(self)


_MAX_BYTES = 64 * 1024 * 1024
"""Largest file, which is read as a whole; configurations are far smaller."""


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """A mistake in a file; line and column count from 1."""

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

    @classmethod
    def read(cls, path: Path) -> Self:
        """The text of a file; when unreadable, an empty one with that mistake."""
        try:
            text = read_bounded(path, _MAX_BYTES, "a YAML file of settings").decode("utf-8")
            # As text files are read: all line ends alike.
            return cls(str(path), text.replace("\r\n", "\n").replace("\r", "\n"))
        except PerfdError as error:
            message = str(error).removeprefix(f"{path}: ").rstrip(".")
            return cls(str(path), "", [Mistake(str(path), 1, 1, message)])
        except FileNotFoundError:
            return cls(str(path), "", [Mistake(str(path), 1, 1, "this file does not exist: check the path")])
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            return cls(str(path), "", [Mistake(str(path), 1, 1, f"this file cannot be read: {reason}")])

    def root(self) -> yaml.Node | None:
        """The only document of the file; None when it is empty or invalid YAML, which is a mistake."""
        try:
            # If libyaml refuses a file, PyYAML's own parser accepts it or words the error.
            with contextlib.suppress(yaml.YAMLError, UnicodeEncodeError):
                return yaml.compose(self.text, Loader=_Loader)
            return yaml.compose(self.text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            self._note_error(error)
        except RecursionError:
            self.refuse(None, "this is nested too deeply")
        return None

    def data(self, node: yaml.Node) -> Any:  # noqa: ANN401
        """The values of a node; None, and mistakes, for invalid values and repeated keys."""
        try:
            self._note_repeated_keys(node, set())
            return yaml.constructor.SafeConstructor().construct_document(node)
        except yaml.YAMLError as error:
            self._note_error(error)
        except ValueError as error:
            self.refuse(node, f"this is not YAML: {error}")
        except RecursionError:
            self.refuse(node, "this is nested too deeply")
        return None

    def note(self, line: int, column: int, message: str) -> None:
        """Add a mistake at a position."""
        self.mistakes.append(Mistake(self.name, line, column, message))

    def refuse(self, node: yaml.Node | None, message: str) -> None:
        """Add a mistake at a node, or at the start of the file."""
        line, column = (0, 0) if node is None else (node.start_mark.line, node.start_mark.column)
        self.note(line + 1, column + 1, message)

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

    def _note_error(self, error: yaml.YAMLError) -> None:
        if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark or error.context_mark):
            line, column, message = mark.line, mark.column, error.problem or error.context
        elif isinstance(error, yaml.reader.ReaderError):
            before = self.text[: error.position]
            line, column, message = before.count("\n"), len(before) - before.rfind("\n") - 1, error.reason
        else:
            line, column, message = 0, 0, " ".join(str(error).split())
        self.note(line + 1, column + 1, f"this is not YAML: {message}")

    def _note_repeated_keys(self, node: yaml.Node, seen: set[int]) -> None:
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            return
        seen.add(id(node))  # An anchor may be part of itself.
        if isinstance(node, yaml.MappingNode):
            keys: set[tuple[str, str]] = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if (key.tag, key.value) in keys:
                        self.refuse(key, f"{key.value!r} is given twice")
                    keys.add((key.tag, key.value))
                self._note_repeated_keys(value, seen)
        else:
            for item in node.value:
                self._note_repeated_keys(item, seen)


def is_null(node: yaml.Node) -> bool:
    """Whether a node is YAML's null, which also an empty value is."""
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def node_at(root: yaml.Node | None, path: Sequence[str | int], *, of_key: bool = False) -> yaml.Node | None:
    """The value at a path of keys and list positions, or its key; None when the document has none there."""
    key = value = root
    for part in path:
        key, value = next(
            ((key, value) for name, key, value in _children(value) if name == str(part)), (None, None)
        )
    return key if of_key else value


def _children(node: yaml.Node | None) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        yield from ((key.value, key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode))
    elif isinstance(node, yaml.SequenceNode):
        yield from ((str(number), item, item) for number, item in enumerate(node.value))
