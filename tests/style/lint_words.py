"""Refuses the words and spellings of words.yaml in every text that people read.

    python -m tests.style.lint_words [PATH...]

Without paths: documentation, rules, the page, the strings, docstrings and comments of the code, and the names
that it defines; of tests and benchmarks only the names. Prints `FILE:LINE: WORD -> what to write`, exits 1 if
there is any.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
WORDS = Path(__file__).with_name("words.yaml")
CHECKED = (
    "*.md",
    "docs/*.md",
    "rules/*.yaml",
    "deploy/*.md",
    "deploy/*.yaml",
    "deploy/*.py",
    "perfd/*.py",
    "perfd/web/static/*.js",
    "perfd/web/static/*.html",
    "collectors/*.py",
)
"""As of git: `*` also matches `/`."""
NAMES_CHECKED = ("perfd/*.py", "collectors/*.py", "deploy/*.py", "benchmarks/*.py", "tests/*.py")
"""Where the names that code defines are checked."""
_FENCED = re.compile(r"^\s*```.*?^\s*```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|^ {4,}perfd .*$", re.MULTILINE)
_CONTEXT = 60


@dataclass(frozen=True, slots=True)
class WordRule:
    """What is refused, and what to write instead. A space in the pattern is any white space."""

    pattern: re.Pattern[str]
    use: str


@dataclass(frozen=True, slots=True)
class AllowedText:
    """Files (a glob) in which text around a refused word that matches the pattern is fine."""

    path: str
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class WordList:
    """What words.yaml holds."""

    rules: Sequence[WordRule]
    allowed: Sequence[AllowedText] = ()
    names: Sequence[WordRule] = ()
    """For names of modules, classes, functions, parameters and variables: words between underscores."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One text that people read, and the line of its file in which it begins."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class RefusedWord:
    """Where a refused word is."""

    path: str
    line: int
    word: str
    use: str


def load_words() -> WordList:
    """The rules and exceptions of words.yaml."""
    content = yaml.safe_load(WORDS.read_text(encoding="utf-8"))
    return WordList(
        rules=[WordRule(_pattern(one["pattern"]), one["use"]) for one in content["rules"]],
        allowed=[AllowedText(one["path"], _pattern(one["pattern"])) for one in content["allow"]],
        names=[WordRule(_name_pattern(one["pattern"]), one["use"]) for one in content["names"]],
    )


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text.replace(" ", r"\s+"), re.MULTILINE | re.IGNORECASE)


def _name_pattern(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![^\W_])(?:{text})(?![^\W_])", re.IGNORECASE)


def refused_names(path: str, content: str, words: WordList) -> list[RefusedWord]:
    """Every name that a Python file defines with a refused word; names that it only uses are another's."""
    # Few files have such a word anywhere.
    if not (rules := [rule for rule in words.names if rule.pattern.search(content)]):
        return []
    return [
        RefusedWord(path, line, name, rule.use)
        for line, name in sorted(set(_defined_names(_tree(content))))
        for rule in rules
        if rule.pattern.search(name)
    ]


@lru_cache(maxsize=1)
def _tree(content: str) -> ast.Module:
    """A file's words are checked, and then its names."""
    return ast.parse(content)


def _defined_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def refused_words(path: str, content: str, words: WordList) -> list[RefusedWord]:
    """Every refused word of one file, in order; `path` decides how it is read."""
    found = []
    passages = list(_passages(path, content))
    # No pattern matches beyond a passage, and most match nowhere in a file.
    whole = "\n\0\n".join(passage.text for passage in passages)
    rules = [rule for rule in words.rules if rule.pattern.search(whole)]
    for passage in passages:
        for rule in rules:
            for match in rule.pattern.finditer(passage.text):
                around = passage.text[max(0, match.start() - _CONTEXT) : match.end() + _CONTEXT]
                if any(fnmatch(path, one.path) and one.pattern.search(around) for one in words.allowed):
                    continue
                line = passage.line + passage.text.count("\n", 0, match.start())
                found.append(RefusedWord(path, line, " ".join(match[0].split()), rule.use))
    return sorted(found, key=lambda one: one.line)


def _passages(path: str, content: str) -> Iterator[Passage]:
    if path.endswith(".py"):
        yield from _strings(content)
        yield from _comments(content)
    elif path.endswith("CHANGELOG.md"):
        start = content.find("## [Unreleased]")
        end = content.find("\n## [", start + 1)
        yield Passage(
            1 + content.count("\n", 0, start), _without_code(content[start : end if end > 0 else None])
        )
    elif path.endswith(".md"):
        yield Passage(1, _without_code(content))
    else:
        yield Passage(1, content)


def _strings(content: str) -> Iterator[Passage]:
    """Strings with a space in them; others are keys and names. What an f-string inserts is `{}`."""
    inner: set[int] = set()
    for node in ast.walk(_tree(content)):
        if id(node) in inner:
            continue
        if isinstance(node, ast.JoinedStr):
            # A node comes before its parts.
            inner.update(map(id, node.values))
            text = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if " " in text.strip():
            yield Passage(node.lineno, _without_code(text))


def _comments(content: str) -> Iterator[Passage]:
    """Comments; lines that follow each other are one."""
    held: list[str] = []
    first = 0
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type != tokenize.COMMENT:
            continue
        if held and token.start[0] != first + len(held):
            yield Passage(first, _without_code("\n".join(held)))
            held = []
        if not held:
            first = token.start[0]
        held.append(token.string.lstrip("#"))
    if held:
        yield Passage(first, _without_code("\n".join(held)))


def _without_code(text: str) -> str:
    """The text without code blocks, code spans and addresses; lines stay where they are."""
    if not any(mark in text for mark in ("`", "](", "perfd ")):
        return text
    for code in (_FENCED, _CODE):
        text = code.sub(lambda found: "`" + "\n" * found[0].count("\n"), text)
    return text


def main(arguments: Sequence[str]) -> int:
    """Check files, print what is refused, and return the exit code."""
    words = load_words()
    listed = subprocess.run(
        ["git", "ls-files", "--", *(arguments or {*CHECKED, *NAMES_CHECKED})],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    found: list[RefusedWord] = []
    for path in listed:
        if path.endswith("_pb2.py") or not (ROOT / path).is_file():
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        if any(fnmatch(path, glob) for glob in CHECKED):
            found += refused_words(path, text, words)
        if any(fnmatch(path, glob) for glob in NAMES_CHECKED):
            found += refused_names(path, text, words)
    sys.stdout.writelines(f"{one.path}:{one.line}: {one.word!r} -> {one.use}\n" for one in found)
    if found:
        sys.stdout.write(f"{len(found)} refused words; tests/style/words.yaml lists them.\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
