"""The tokens of an expression with their positions, which `promql_parser` does not report."""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfd.rules.problems import Problem, TextError

_PATTERNS = {
    "space": r"\s+|#[^\n]*",
    "string": r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|`[^`]*`',
    "duration": r"(?:\d+(?:ms|[smhdwy]))+(?![A-Za-z0-9_.])",
    "number": r"0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?",
    "word": r"[A-Za-z_:][A-Za-z0-9_:]*",
    "operator": r"=~|!~|==|!=|<=|>=|[-+*/%^=<>]",
    "bracket": r"[()\[\]{}]",
    "mark": r"[,@:]",
}
_TOKEN = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _PATTERNS.items()))
_RANGE_COLON = re.compile(r":(?![A-Za-z0-9_])|:(?=\s*\d)")

CLOSING = {"(": ")", "[": "]", "{": "}"}
"""The bracket that ends each bracket."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token of an expression; `kind` is a key of the table of patterns."""

    kind: str
    text: str
    offset: int


def tokenize(text: str) -> list[Token]:
    """The tokens of an expression, without white space and comments.

    Raises `TextError` at a character that begins no token.
    """
    tokens: list[Token] = []
    position = 0
    in_range = False
    while position < len(text):
        # Inside of brackets a colon separates a subquery's step; elsewhere it may be part of a name.
        match = (_RANGE_COLON.match(text, position) if in_range else None) or _TOKEN.match(text, position)
        if match is None:
            raise TextError([Problem(_unreadable(text[position]), position)])
        kind = match.lastgroup or "mark"
        in_range = match[0] == "[" or (in_range and match[0] != "]")
        if kind != "space":
            tokens.append(Token(kind, match[0], position))
        position = match.end()
    return tokens


def _unreadable(character: str) -> str:
    if character in "\"'`":
        return f"unterminated text after {character}"
    return f"unexpected character {character!r}"
