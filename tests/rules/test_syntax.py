"""What the subset of PromQL takes and refuses; positions count from 0."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfd.rules.problems import Problem, TextError
from perfd.rules.promql.compiler import compile_query
from perfd.rules.promql.tokens import tokenize


@pytest.mark.parametrize(
    ("text", "offset", "part"),
    [
        ("", 0, "is empty"),
        ("x +", 3, "ends too early"),
        ("sum(x))", 6, "unexpected"),
        ("x y", 2, "unexpected"),
        ("1 + * 2", 4, "unexpected"),
        ("sum by a (x)", 7, "unexpected"),
        ('x{a="1" b="2"}', 8, "unexpected"),
        ("x{a=}", 4, "unexpected"),
        ('x{a="b}', 4, "unterminated"),
        ("x $ y", 2, "unexpected character"),
        ("a + foo(b)", 4, "function foo is not supported"),
        ("x atan2 y", 2, "operator atan2"),
        ("limitk(1, x)", 0, "limitk is not supported"),
        ("sum(rate(x[5m])[1h:])", 18, "subqueries"),
        ('x{a="1" or b="2"}', 8, "`or` between matchers"),
        ('{"x"}', 1, "names in quotes"),
        ("x offset 5", 9, "write a unit"),
        ("bottomk(x)", 0, "wrong number of arguments"),
    ],
)
def test_a_mistake_is_reported_with_its_place(text: str, offset: int, part: str) -> None:
    with pytest.raises(TextError) as caught:
        compile_query(text)
    (problem,) = caught.value.problems
    assert problem.offset == offset
    assert part in problem.message


@pytest.mark.parametrize("text", ["rate(a[184467440w3709551616m]) > 1", "a offset 184467440w3709551616m > 1"])
def test_a_duration_beyond_all_time_is_refused(text: str) -> None:
    with pytest.raises(TextError, match="a duration is too long"):
        compile_query(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000 + "x" + ")" * 100_000,
        "-" * 9_000 + "x",
        "abs(" * 300 + "x" + ")" * 300,
        "+".join(["x"] * 999),
    ],
)
def test_an_expression_that_is_too_deep_is_refused(text: str) -> None:
    with pytest.raises(TextError, match="more than 200 operators and parentheses"):
        compile_query(text)


def test_everything_that_is_not_supported_is_reported_at_once() -> None:
    with pytest.raises(TextError) as caught:
        compile_query("foo(x) + x @ 5 + bar(y)")
    assert [problem.offset for problem in caught.value.problems] == [0, 11, 17]


@pytest.mark.parametrize(
    "text",
    [
        "sum # by nothing\n(x)",
        "sum by (job, instance,) (x)",
        "x{a='b', c!~`d.*`, }",
        "by + bool_x",
        "x offset -5m",
        "-x ^ 2 > bool on () group_left () y",
        "+x",
        'x{a=~"(?i:b)|c{2,3}[^]x]\\\\d"}',
        "job:x:rate5m",
        '{__name__=~"perfd_.+"}',
        "rate(x[1h30m] offset 1w)",
        "sum(x) without (y)",
        "NaN + Inf + 0x1F + .5e-3",
    ],
)
def test_the_language_of_rules_is_taken(text: str) -> None:
    assert compile_query(text).text == text


def test_a_group_list_may_have_the_name_of_a_function() -> None:
    compile_query("sum by (foo) (x) * on (rate) group_left (foo) y")


@settings(deadline=None)
@given(st.text(alphabet="xy{}[]()=~!\"'`,:@+-*/ 0123456789.smhabd\n\\", max_size=40))
def test_any_text_is_compiled_or_refused_with_places_inside_it(text: str) -> None:
    for problem in problems(text):
        assert 0 <= problem.offset <= len(text)


def problems(text: str) -> list[Problem]:
    try:
        compile_query(text)
    except TextError as error:
        return error.problems or [Problem("an error without a problem", -1)]
    return []


@settings(deadline=None)
@given(st.text(max_size=40))
def test_tokens_are_parts_of_the_text_in_order(text: str) -> None:
    try:
        tokens = tokenize(text)
    except TextError:
        return
    position = 0
    for token in tokens:
        assert token.offset >= position
        assert text[token.offset : token.offset + len(token.text)] == token.text
        position = token.offset + len(token.text)
