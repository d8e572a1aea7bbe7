"""Parses an expression, and refuses what the embedded engine does not evaluate, with positions.

`promql_parser` has the grammar and the types, but reports errors without a
position and accepts newer syntax than the Prometheus that the rules are
tested against; both are fixed here, on tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import promql_parser

from perfd.rules.problems import Problem, TextError
from perfd.rules.promql.subset import unsupported
from perfd.rules.promql.tokens import CLOSING, Token, tokenize

_MAX_DEPTH = 200
"""The grammar and the compiler are recursive, and Python's stack is not endless."""
_DEEPENING = frozenset({"(", "and", "or", "unless"})
_SYNTAX_ERRORS = ("invalid promql query", "unclosed", "unexpected", "missing", "bad ")
"""How the parser's complaints about grammar, as opposed to types and names, begin."""


def parse(text: str) -> promql_parser.Expr:
    """The syntax tree of an expression of the subset.

    Raises `TextError` with every separate error.
    """
    tokens = tokenize(text)
    if not tokens:
        raise TextError([Problem("the expression is empty", 0)])
    too_far = next(islice(_deepening(tokens), _MAX_DEPTH, None), None)
    if too_far is not None:
        message = f"more than {_MAX_DEPTH} operators and parentheses: record a part of it as a separate rule"
        raise TextError([Problem(message, too_far.offset)])
    problems = list(unsupported(tokens))
    if problems:
        raise TextError(problems)
    try:
        tree = promql_parser.parse(text)
    except ValueError as error:
        raise TextError([_located(str(error), text, tokens)]) from error
    if isinstance(tree, (promql_parser.MatrixSelector, promql_parser.StringLiteral)):
        kind = "range of samples" if isinstance(tree, promql_parser.MatrixSelector) else "text"
        message = f"a rule needs a number or one value per series, not a {kind}"
        raise TextError([Problem(message, tokens[0].offset)])
    return tree


def _deepening(tokens: Sequence[Token]) -> Iterator[Token]:
    """The tokens that may make the syntax tree deeper; parser and compiler descend it by recursion."""
    in_braces = False
    for token in tokens:
        in_braces = token.text == "{" or (in_braces and token.text != "}")
        if not in_braces and (token.kind == "operator" or token.text in _DEEPENING):
            yield token


def _located(message: str, text: str, tokens: Sequence[Token]) -> Problem:
    """The parser's error, at its most likely place."""
    if not message.startswith(_SYNTAX_ERRORS):
        return Problem(message, _place_of_name(message, tokens))
    for index, token in enumerate(tokens):
        if not _can_continue(tokens, index + 1, text):
            return Problem(f"unexpected {token.text!r}", token.offset)
    return Problem("the expression ends too early", len(text.rstrip()))


def _can_continue(tokens: Sequence[Token], count: int, text: str) -> bool:
    """Whether the first tokens can be the beginning of some expression."""
    last = tokens[count - 1]
    prefix = text[: last.offset + len(last.text)]
    stack: list[str] = []
    for token in tokens[:count]:
        if token.kind == "bracket":
            if token.text in CLOSING:
                stack.append(token.text)
            elif not stack or CLOSING[stack.pop()] != token.text:
                return False
    closers = "".join(CLOSING[bracket] for bracket in reversed(stack))
    endings = (
        "",
        " x",
        " 1",
        " x[1m]",
        ' "x"',
        ' ="x"',
        ' a="x"',
        " (x)",
        " (1)",
        " 1m",
        " 1s]",
        " )(x)",
        " ) x",
        " bool 1",
    )
    closings = (closers, closers[1:], f"{closers} x", f"{closers} (x)", f", x{closers}")
    return any(_grammatical(prefix + ending + closing) for ending in endings for closing in closings)


def _grammatical(text: str) -> bool:
    try:
        promql_parser.parse(text)
    except ValueError as error:
        return not str(error).startswith(_SYNTAX_ERRORS)
    return True


def _place_of_name(message: str, tokens: Sequence[Token]) -> int:
    """The offset of the function or operator that an error names, otherwise 0."""
    for token in tokens:
        if token.kind in {"word", "string"} and f"'{token.text}'" in message:
            return token.offset
    return tokens[0].offset
