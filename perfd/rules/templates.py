"""The templates of labels and annotations: a subset of Go's, checked when a rule is loaded.

An action is `{{ ... }}` with `$value`, `$labels.NAME`, `$externalLabels.NAME`,
`$externalURL` (or `.Value`, `.Labels.NAME`, ...), text and numbers, and calls of
`printf`, `humanize`, `humanize1024`, `humanizeDuration`, `humanizePercentage`,
`toUpper`, `toLower`, piped or in parentheses. Control structures and queries
are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from perfd.rules import go_numbers
from perfd.rules.problems import Problem, TextError

Value: TypeAlias = float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateData:
    """The values of a template's variables."""

    value: float
    labels: Mapping[str, str]
    external_labels: Mapping[str, str] = field(default_factory=dict)
    external_url: str = ""


@dataclass(frozen=True, slots=True)
class _Term:
    """A part of an action: gives a number or a text."""

    is_number: bool
    get: Callable[[TemplateData], Value]


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled template. Equal if the text is."""

    text: str
    _parts: tuple[str | _Term, ...] = field(compare=False, repr=False)

    def expand(self, data: TemplateData) -> str:
        """The text with each action replaced by its result."""
        return "".join(part if isinstance(part, str) else _text(part.get(data)) for part in self._parts)


def _text(value: Value) -> str:
    return value if isinstance(value, str) else go_numbers.go_float(value)


_ACTION = re.compile(
    r"\{\{(?:(?P<left>-)(?=\s))?(?P<body>(?:\"(?:[^\"\\]|\\.)*\"|`[^`]*`|(?!\}\}).)*?)(?:(?<=\s)(?P<right>-))?\}\}",
    re.DOTALL,
)
_COMMENT = re.compile(r"\s*/\*.*\*/\s*", re.DOTALL)
_WORD = re.compile(
    r"""\s*(?: (?P<string>"(?:[^"\\\n]|\\.)*"|`[^`]*`)
             | (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
             | (?P<variable>\$[A-Za-z_]*(?:\.\w+)*|\.[A-Za-z_]\w*(?:\.\w+)*)
             | (?P<name>[A-Za-z_]\w*)
             | (?P<mark>[|()])
             | (?P<other>\S) )""",
    re.VERBOSE | re.DOTALL,
)
_VERB = re.compile(r"%(?P<flags>[-+ 0]*)(?P<width>\d*)(?P<precision>\.\d+)?(?P<verb>.?)", re.DOTALL)
_OF_NUMBER: Mapping[str, Callable[[float], str]] = {
    "humanize": go_numbers.humanize,
    "humanize1024": go_numbers.humanize1024,
    "humanizeDuration": go_numbers.humanize_duration,
    "humanizePercentage": go_numbers.humanize_percentage,
}
_OF_TEXT: Mapping[str, Callable[[str], str]] = {"toUpper": str.upper, "toLower": str.lower}
_KNOWN = ", ".join(("printf", *_OF_NUMBER, *_OF_TEXT))


def compile_template(text: str) -> Template:
    """A template ready to expand; raises `TextError` with every error in it."""
    parts: list[str | _Term] = []
    problems: list[Problem] = []
    position = 0
    trim_next = False
    for match in _ACTION.finditer(text):
        literal = text[position : match.start()]
        literal = literal.lstrip() if trim_next else literal
        parts.append(literal.rstrip() if match["left"] else literal)
        problems.extend(_stray_braces(text, position, match.start()))
        position, trim_next = match.end(), match["right"] is not None
        if not _COMMENT.fullmatch(match["body"]):
            try:
                parts.append(_Parser(match["body"], match.start("body")).action())
            except TextError as error:
                problems.extend(error.problems)
    problems.extend(_stray_braces(text, position, len(text)))
    parts.append(text[position:].lstrip() if trim_next else text[position:])
    if problems:
        raise TextError(problems)
    return Template(text, tuple(part for part in parts if part))


def _stray_braces(text: str, start: int, end: int) -> list[Problem]:
    position = text.find("{{", start, end)
    return [Problem("unterminated action: write `}}`", position)] if position >= 0 else []


class _Parser:
    """Reads the inside of one action."""

    def __init__(self, body: str, offset: int) -> None:
        self._words = [match for match in _WORD.finditer(body) if match.lastgroup]
        self._next = 0
        self._body = body
        self._offset = offset

    def action(self) -> _Term:
        if not self._words:
            raise self._error("the action is empty")
        term = self._pipeline()
        if self._next < len(self._words):
            raise self._error(f"unexpected {self._peek()!r}")
        return term

    def _pipeline(self) -> _Term:
        term = self._command(None)
        while self._peek() == "|":
            self._next += 1
            term = self._command(term)
        return term

    def _command(self, piped: _Term | None) -> _Term:
        word = self._take()
        if word.lastgroup == "name":
            return self._call(word, piped)
        if piped is not None:
            raise self._error("after `|` there must be a function", word)
        return self._operand(word)

    def _call(self, word: re.Match[str], piped: _Term | None) -> _Term:
        name = word["name"]
        if name != "printf" and name not in _OF_NUMBER and name not in _OF_TEXT:
            raise self._error(f"{name} is not supported in templates; the functions are {_KNOWN}", word)
        arguments: list[_Term] = []
        literals: list[re.Match[str]] = []
        while self._peek() not in {None, "|", ")"}:
            literals.append(self._take())
            arguments.append(self._operand(literals[-1]))
        if piped is not None:
            arguments.append(piped)
        if name == "printf":
            return self._printf(word, literals, arguments)
        return self._function(word, arguments)

    def _function(self, word: re.Match[str], arguments: Sequence[_Term]) -> _Term:
        name = word["name"]
        if len(arguments) != 1:
            raise self._error(f"{name} takes one argument, not {len(arguments)}", word)
        get = arguments[0].get
        if name in _OF_NUMBER:
            if not arguments[0].is_number:
                raise self._error(f"{name} needs a number, not text", word)
            of_number = _OF_NUMBER[name]
            return _Term(False, lambda data: of_number(float(get(data))))
        of_text = _OF_TEXT[name]
        if arguments[0].is_number:
            raise self._error(f"{name} needs text, not a number", word)
        return _Term(False, lambda data: of_text(str(get(data))))

    def _printf(
        self, word: re.Match[str], literals: Sequence[re.Match[str]], arguments: Sequence[_Term]
    ) -> _Term:
        if not literals or literals[0].lastgroup != "string":
            raise self._error("the first argument of printf must be a text in quotes", word)
        layout = _unquote(literals[0]["string"])
        values = arguments[1:]
        verbs = [match for match in _VERB.finditer(layout) if match["verb"] != "%"]
        if len(verbs) != len(values):
            raise self._error(f"printf has {len(verbs)} verbs and {len(values)} values", word)
        for verb, value in zip(verbs, values, strict=True):
            if verb["verb"] not in ("eEfFgGv" if value.is_number else "sv") or not verb["verb"]:
                kind = "a number" if value.is_number else "text"
                raise self._error(f"printf cannot write {kind} with {verb[0]!r}", word)

        def expand(data: TemplateData) -> str:
            results = iter([value.get(data) for value in values])
            return _VERB.sub(
                lambda match: "%" if match["verb"] == "%" else _format(match, next(results)), layout
            )

        return _Term(False, expand)

    def _operand(self, word: re.Match[str]) -> _Term:
        if word.lastgroup == "string":
            text = _unquote(word["string"])
            return _Term(False, lambda _: text)
        if word.lastgroup == "number":
            number = float(word["number"])
            return _Term(True, lambda _: number)
        if word.lastgroup == "variable":
            return self._variable(word)
        if word["mark"] == "(":
            term = self._pipeline()
            if self._peek() != ")":
                raise self._error("the parenthesis is not closed", word)
            self._next += 1
            return term
        raise self._error(f"unexpected {word[0].strip()!r}", word)

    def _variable(self, word: re.Match[str]) -> _Term:
        name, _, label = word["variable"].removeprefix(".").removeprefix("$").partition(".")
        name = name[:1].lower() + name[1:]
        if name == "value" and not label:
            return _Term(True, lambda data: data.value)
        if name == "externalURL" and not label:
            return _Term(False, lambda data: data.external_url)
        if name == "labels" and label and "." not in label:
            return _Term(False, lambda data: data.labels.get(label, ""))
        if name == "externalLabels" and label and "." not in label:
            return _Term(False, lambda data: data.external_labels.get(label, ""))
        known = "$value, $labels.NAME, $externalLabels.NAME and $externalURL"
        raise self._error(f"{word['variable']} is not supported; supported: {known}", word)

    def _peek(self) -> str | None:
        return self._words[self._next][0].strip() if self._next < len(self._words) else None

    def _take(self) -> re.Match[str]:
        if self._next == len(self._words):
            raise self._error("the action ends too early")
        self._next += 1
        return self._words[self._next - 1]

    def _error(self, message: str, word: re.Match[str] | None = None) -> TextError:
        if word is None and self._next < len(self._words):
            word = self._words[self._next]
        position = word.start(word.lastgroup or 0) if word else len(self._body.rstrip())
        return TextError([Problem(message, self._offset + position)])


_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}


def _unquote(literal: str) -> str:
    if literal.startswith("`"):
        return literal[1:-1]
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[0]), literal[1:-1])


def _format(verb: re.Match[str], value: Value) -> str:
    """One verb of printf, as Go writes it."""
    flags, width = verb["flags"], verb["width"]
    if isinstance(value, str):
        text = value[: int(verb["precision"][1:])] if verb["precision"] else value
    elif not math.isfinite(value):
        flags, text = flags.replace("0", ""), go_numbers.special(value)
    elif verb["verb"] in "gGv" and not verb["precision"]:
        text = go_numbers.go_float(value)
        text = f"+{text}" if "+" in flags and value >= 0 else text
    else:
        letter = verb["verb"].replace("v", "g")
        return f"%{flags}{width}{verb['precision'] or ''}{letter}" % value
    if "-" in flags:
        return text.ljust(int(width or 0))
    return text.zfill(int(width or 0)) if "0" in flags else text.rjust(int(width or 0))
