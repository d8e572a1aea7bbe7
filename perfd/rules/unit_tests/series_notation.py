"""The notation of series in unit tests of rules: `x{a="b"}` and `0+10x5 _ _x3 stale NaN`.

It is that of promtool (https://prometheus.io/docs/prometheus/2.42/configuration/unit_testing_rules/).
"""

from __future__ import annotations

import re

from perfd.metrics.series import SeriesKey
from perfd.rules.label_matchers import METRIC_NAME_LABEL
from perfd.rules.problems import Problem, TextError
from perfd.rules.promql.subset import unquote
from perfd.rules.promql.tokens import Token, tokenize
from perfd.rules.series_store import STALE

# Without hexadecimal numbers: `0x8` is nine zeros.
_NUMBER = r"(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[iI]nf|[nN]a[nN])"
_ITEM = re.compile(
    rf"(?:(?P<gap>_)|(?P<stale>stale)|(?P<start>[-+]?{_NUMBER})(?:(?P<sign>[-+])(?P<step>{_NUMBER})(?=x))?)"
    rf"(?:x(?P<times>\d{{1,18}}))?"
)

_MOST_VALUES = 1_000_000
"""Of a series, so that a typing mistake does not fill the memory: two years of minutes. Chosen."""


def parse_series(text: str) -> SeriesKey:
    """The series that a name with labels in braces stands for; raises `TextError`."""
    tokens = tokenize(text)
    name = tokens[0].text if tokens and tokens[0].kind == "word" else ""
    labels: dict[str, str] = {}
    rest = tokens[1:] if name else tokens
    if rest and not (rest[0].text == "{" and rest[-1].text == "}"):
        raise TextError([Problem("labels must be in one pair of braces", rest[0].offset)])
    for pair in _pairs(rest[1:-1]):
        if [token.kind for token in pair] != ["word", "operator", "string"] or pair[1].text != "=":
            raise TextError([Problem('a label must be written as name="value"', pair[0].offset)])
        labels[pair[0].text] = unquote(pair[2].text)
    name = labels.pop(METRIC_NAME_LABEL, name)
    return SeriesKey.of(name, labels)


def _pairs(tokens: list[Token]) -> list[list[Token]]:
    """The tokens between commas."""
    pairs: list[list[Token]] = [[]]
    for token in tokens:
        if token.text == ",":
            pairs.append([])
        else:
            pairs[-1].append(token)
    return [pair for pair in pairs if pair]


def parse_values(text: str) -> list[float | None]:
    """The values of a series, one per interval; None for no sample, `STALE` the end of the series.

    Raises `TextError` at an item that is not of the notation.
    """
    values: list[float | None] = []
    for word in re.finditer(r"\S+", text):
        item = _ITEM.fullmatch(word[0])
        if item is None:
            raise TextError([Problem(f"{word[0]!r} is not a value, `a+bxn`, `_` or `stale`", word.start())])
        times = int(item["times"]) if item["times"] else None
        if len(values) + (times or 0) > _MOST_VALUES:
            raise TextError([Problem(f"a series has at most {_MOST_VALUES:,} values", word.start())])
        if item["gap"]:
            values.extend([None] * (1 if times is None else times))
        elif item["stale"]:
            values.append(float(STALE))
        else:
            values.extend(_expanded(item, times or 0))
    return values


def _expanded(item: re.Match[str], times: int) -> list[float]:
    """`a+bxn`: a, and n more, each by b larger than the one before."""
    step = float(item["step"]) if item["step"] else 0.0
    step = -step if item["sign"] == "-" else step
    values = [float(item["start"])]
    for _ in range(times):
        values.append(values[-1] + step)
    return values
