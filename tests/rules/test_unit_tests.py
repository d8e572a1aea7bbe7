"""The unit tests of rules themselves: notation, reading, running."""

import math
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfd.errors import RulesError
from perfd.metrics.series import SeriesKey
from perfd.rules.durations import format_duration, parse_duration
from perfd.rules.problems import TextError
from perfd.rules.promql.series_keys import describe
from perfd.rules.series_store import STALE
from perfd.rules.unit_tests.series_notation import parse_series, parse_values
from perfd.rules.unit_tests.test_files import read_tests
from perfd.rules.unit_tests.test_runner import run_tests


def words(text: str) -> list[object]:
    return [
        "gap" if value is None else "stale" if repr_bits(value) == repr_bits(STALE) else value
        for value in parse_values(text)
    ]


def repr_bits(value: float) -> bytes:
    return struct.pack("<d", value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 2.5 -3e2", [1, 2.5, -300]),
        ("0+10x3", [0, 10, 20, 30]),
        ("5-2x2", [5, 3, 1]),
        ("-1-1x1", [-1, -2]),
        ("7x2", [7, 7, 7]),
        ("0x2", [0, 0, 0]),
        ("_ _x2 stale", ["gap", "gap", "gap", "stale"]),
        ("Inf -Inf", [math.inf, -math.inf]),
        ("1e-1+1e-1x1", [0.1, 0.2]),
        ("", []),
    ],
)
def test_values_are_read_as_promtool_reads_them(text: str, expected: list[object]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize("text", ["1+1", "x3", "1..2", "1x", "stall", "1 ,2", "1+x3"])
def test_a_value_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(TextError):
        parse_values(text)


@pytest.mark.parametrize("text", ["0+1x9999999999", "_x1000001", "0x600000 _x600000", "1x" + "9" * 5000])
def test_more_values_than_a_test_needs_are_refused_at_once(text: str) -> None:
    with pytest.raises(TextError):
        parse_values(text)


labels = st.dictionaries(
    st.from_regex(r"[a-z_][a-z0-9]{0,5}", fullmatch=True), st.text(min_size=1, max_size=8), max_size=3
)


@settings(deadline=None)
@given(st.from_regex(r"[a-z][a-z0-9_:]{0,8}", fullmatch=True), labels)
def test_a_series_reads_back_from_how_it_is_written(name: str, of: dict[str, str]) -> None:
    key = SeriesKey.of(name, of)
    assert parse_series(describe(key)) == key


@settings(deadline=None)
@given(st.integers(0, 10**12))
def test_a_duration_reads_back_from_how_it_is_written(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds)) == milliseconds


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_values_or_refused(text: str) -> None:
    try:
        parse_values(text)
        parse_series(text)
    except TextError as error:
        offsets = [problem.offset for problem in error.problems]
    else:
        offsets = []
    assert all(0 <= offset <= len(text) for offset in offsets)


RULES = """
groups:
  - name: late
    rules: [{record: copy, expr: base}]
  - name: early
    rules:
      - {record: base, expr: x}
      - {alert: High, expr: x > 2, for: 1m, annotations: {summary: "{{ $externalLabels.site }} {{ $value }}"}}
"""
TESTS = """
rule_files: [rules.yaml]
evaluation_interval: 30s
group_eval_order: [early, late]
tests:
  - name: good
    interval: 30s
    external_labels: {site: s1}
    input_series: [{series: x, values: '1 3 3 3 _ _ stale'}]
    alert_rule_test:
      - {eval_time: 1m, alertname: High}
      - eval_time: 1m30s
        alertname: High
        exp_alerts: [{exp_annotations: {summary: s1 3}}]
      - {eval_time: 3m, alertname: High}
    promql_expr_test:
      - {expr: copy, eval_time: 30s, exp_samples: [{labels: copy, value: 3}]}
      - {expr: x, eval_time: 3m}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rules.yaml").write_text(RULES)
    return tmp_path


def failures(folder: Path, text: str) -> list[tuple[str, list[str], list[str]]]:
    path = folder / "tests.yaml"
    path.write_text(text)
    return [(f.about, list(f.expected), list(f.got)) for f in run_tests(read_tests(path))]


def test_tests_that_hold_give_no_failure(folder: Path) -> None:
    assert failures(folder, TESTS) == []


def test_an_alert_that_is_not_as_expected_is_a_failure(folder: Path) -> None:
    got = failures(folder, TESTS.replace("summary: s1 3", "summary: other"))
    expected = """Labels:{alertname="High"} Annotations:{summary='other'}"""
    assert got == [("alertname: High, time: 1m30s", [expected], [expected.replace("other", "s1 3")])]


def test_a_sample_that_is_not_as_expected_is_a_failure(folder: Path) -> None:
    got = failures(folder, TESTS.replace("value: 3", "value: 4"))
    assert got == [("expr: 'copy', time: 30s", ["copy 4"], ["copy 3"])]


def test_groups_in_another_order_give_another_result(folder: Path) -> None:
    got = failures(folder, TESTS.replace("[early, late]", "[late, early]"))
    assert got == [("expr: 'copy', time: 30s", ["copy 3"], ["copy 1"])]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rule_files", "rules_files", "2:1: 'rules_files' is not a key"),
        ("rules.yaml]", "none.yaml]", "2:14: no rules file 'none.yaml'"),
        ("1m, alertname", "1 m, alertname", "11:21: `eval_time`: '1 m' is not a duration"),
        ("'1 3 3", "'1 3 y", "9:45: `values`: 'y' is not a value"),
        ("expr: copy", "expr: 'copy @ 1'", "17:22: `expr`: the @ modifier"),
        ("labels: copy", "labels: 'copy{a}'", "17:67: `labels`: a label must be written"),
        ("series: x, ", "", "9:20: `series` is missing"),
    ],
)
def test_a_mistake_in_a_file_of_tests_is_reported_with_its_place(
    folder: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(RulesError) as caught:
        failures(folder, TESTS.replace(old, new, 1))
    assert message in str(caught.value)
