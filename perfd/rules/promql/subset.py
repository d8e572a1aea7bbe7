"""Finds PromQL outside the subset, from the tokens of an expression."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import promql_parser

from perfd.rules.label_matchers import compile_regex
from perfd.rules.problems import Problem
from perfd.rules.promql import aggregations, functions, range_vectors
from perfd.rules.promql.tokens import CLOSING, Token

_BY_THE_COMPILER = (
    *("absent", "absent_over_time", "label_join", "label_replace", "scalar", "sort", "sort_desc"),
    *("time", "timestamp", "vector"),
)
"""Functions that are in no table."""
FUNCTIONS = frozenset((*range_vectors.FUNCTIONS, *functions.ELEMENTWISE, *_BY_THE_COMPILER)) - {"neg"}
"""The functions of the subset."""
AGGREGATIONS = frozenset((*aggregations.SIMPLE, "bottomk", "quantile", "topk"))
"""The aggregations of the subset."""

_KEYWORDS = frozenset(
    ["and", "bool", "by", "group_left", "group_right", "ignoring", "on", "or", "unless", "without"]
)
_OR_IN_BRACES = "`or` between matchers is not supported: use a regular expression, or two selectors"
_GROUPING = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})


@dataclass(frozen=True, slots=True)
class _Place:
    """The context of a token: its neighbors, and the bracket that it is in."""

    previous: str
    following: str
    inside: str


def unsupported(tokens: Sequence[Token]) -> Iterator[Problem]:
    """Everything in an expression that the embedded engine does not evaluate."""
    enclosing: list[str] = []
    texts = ["", *(token.text for token in tokens), ""]
    for index, token in enumerate(tokens):
        if token.text in CLOSING:
            enclosing.append(token.text)
        elif token.kind == "bracket" and enclosing:
            enclosing.pop()
        place = _Place(texts[index], texts[index + 2], enclosing[-1] if enclosing else "")
        reason = _CHECKS[token.kind](token.text, place) if token.kind in _CHECKS else None
        if reason:
            yield Problem(reason, token.offset)


def _word(text: str, place: _Place) -> str | None:
    if place.inside == "{":
        return _OR_IN_BRACES if text == "or" else None
    if text in _KEYWORDS or text in FUNCTIONS or text in AGGREGATIONS:
        return None
    if text == "atan2" and place.previous:
        return "the operator atan2 is not supported"
    if place.following in {"by", "without"} or (text == "count_values" and place.following == "("):
        return f"the aggregation {text} is not supported"
    if place.following == "(" and place.previous not in _GROUPING:
        return f"the function {text} is not supported"
    return None


def _string(text: str, place: _Place) -> str | None:
    if place.inside == "{" and place.previous in {"{", ","}:
        return "names in quotes are not supported: they need a newer Prometheus than 2.42"
    if place.inside == "{" and place.previous in {"=~", "!~"}:
        try:
            compile_regex(unquote(text))
        except ValueError as error:
            return str(error)
    return None


def _duration(text: str, place: _Place) -> str | None:
    if place.inside == "[" or place.previous in {"offset", "-"}:
        return None
    return f"a duration such as {text} is only allowed in brackets or after `offset`"


def _number(text: str, place: _Place) -> str | None:
    if place.inside == "[" or place.previous == "offset":
        return f"write a unit after {text}, for example {text}s"
    return None


def _mark(text: str, place: _Place) -> str | None:
    if text == ":" and place.inside == "[":
        return "subqueries are not supported: record the inner expression as a rule and use a range of that"
    if text == "@":
        return "the @ modifier is not supported: rules are evaluated at the current time"
    return None


_CHECKS: Mapping[str, Callable[[str, _Place], str | None]] = {
    "word": _word,
    "string": _string,
    "duration": _duration,
    "number": _number,
    "mark": _mark,
}


def unquote(literal: str) -> str:
    """The value of a string literal."""
    tree = promql_parser.parse(literal)
    return tree.val if isinstance(tree, promql_parser.StringLiteral) else literal
