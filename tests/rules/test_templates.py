import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfd.rules.problems import Problem, TextError
from perfd.rules.templates import TemplateData, compile_template

DATA = TemplateData(
    value=0.4567, labels={"job": "run", "n": "7"}, external_labels={"cluster": "c"}, external_url="http://p"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("{{ $labels.job }}/{{ .Labels.n }}/{{ $labels.none }}", "run/7/"),
        ("{{ $value }} {{ .Value | humanizePercentage }}", "0.4567 45.67%"),
        ('{{ $value | printf "%.1f" }}', "0.5"),
        ('{{ printf "%s is %5.2f|%-6v|" $labels.job $value 2.0 }}', "run is  0.46|2     |"),
        ('{{ printf "100%% of %s" (humanize $value) }}', "100% of 456.7m"),
        ("{{ $labels.job | toUpper }}", "RUN"),
        ("{{ $externalLabels.cluster }} {{ $externalURL }}", "c http://p"),
        ("a {{- `x` -}} b {{/* nothing */}}{{- $value }}", "axb 0.4567"),
        ('{{ "a \\"quoted\\" }} text" }}', 'a "quoted" }} text'),
        ("}} is plain", "}} is plain"),
    ],
)  # fmt: skip
def test_a_template_expands_as_in_go(text: str, expected: str) -> None:
    assert compile_template(text).expand(DATA) == expected


@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [
        ("humanize", 0, "0"),
        ("humanize", 1234567, "1.235M"),
        ("humanize", 0.0015, "1.5m"),
        ("humanize", -math.inf, "-Inf"),
        ("humanize1024", 1024, "1ki"),
        ("humanize1024", 1536 * 1024**2, "1.5Gi"),
        ("humanizeDuration", 0, "0s"),
        ("humanizeDuration", 1.5, "1.5s"),
        ("humanizeDuration", 90061, "1d 1h 1m 1s"),
        ("humanizeDuration", -3725, "-1h 2m 5s"),
        ("humanizeDuration", 0.02, "20ms"),
        ("humanizePercentage", 0.1234567, "12.35%"),
        ("humanizePercentage", math.nan, "NaN%"),
        ('printf "%v"', 1e6, "1e+06"),
        ('printf "%g"', 123456, "123456"),
        ('printf "%v"', 1e-5, "1e-05"),
        ('printf "%+08.2f"', 3.14159, "+0003.14"),
        ('printf "%08.2f"', math.nan, "     NaN"),
        ('printf "%e"', 12345.678, "1.234568e+04"),
    ],
)
def test_a_number_is_written_as_prometheus_writes_it(function: str, value: float, expected: str) -> None:
    template = compile_template(f"{{{{ {function} $value }}}}")
    assert template.expand(TemplateData(value=value, labels={})) == expected


@pytest.mark.parametrize(
    ("text", "offset", "part"),
    [
        ("a {{ $value", 2, "unterminated"),
        ("{{ }}", 2, "empty"),
        ("{{ range $x }}", 3, "range is not supported"),
        ("{{ $value | $labels.job }}", 12, "must be a function"),
        ("{{ humanize }}", 3, "one argument"),
        ("{{ humanize $labels.job }}", 3, "needs a number"),
        ("{{ toUpper $value }}", 3, "needs text"),
        ("{{ printf $labels.job }}", 3, "text in quotes"),
        ('{{ printf "%d" $value }}', 3, "cannot write a number"),
        ('{{ printf "%f" $labels.job }}', 3, "cannot write text"),
        ("{{ (humanize $value }}", 3, "not closed"),
        ("{{ $labels }}", 3, "not supported"),
        ("{{ $labels.job.x }}", 3, "not supported"),
        ("{{ $value ) }}", 10, "unexpected"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_place(text: str, offset: int, part: str) -> None:
    with pytest.raises(TextError) as caught:
        compile_template(text)
    (problem,) = caught.value.problems
    assert problem.offset == offset
    assert part in problem.message


@settings(deadline=None)
@given(st.text(alphabet='{}-$.()|" `%fsvprintfhumanizelabels.value/*\\\n', max_size=50), st.floats())
def test_any_text_expands_or_is_refused_with_places_inside_it(text: str, value: float) -> None:
    found: list[Problem] = []
    try:
        compile_template(text).expand(TemplateData(value=value, labels={"job": "x"}))
    except TextError as error:
        found = error.problems
    assert all(0 <= problem.offset <= len(text) for problem in found)


@settings(deadline=None)
@given(st.text(alphabet=st.characters(exclude_characters="{}"), max_size=50))
def test_text_without_actions_stays_as_it_is(text: str) -> None:
    assert compile_template(text).expand(DATA) == text


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_value_reads_back_as_the_same_number(value: float) -> None:
    assert float(compile_template("{{ $value }}").expand(TemplateData(value=value, labels={}))) == value
