"""Unit tests of rules, in the format of `promtool test rules`: records, and how a file is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import yaml

from perfd.errors import RulesError
from perfd.metrics.series import SeriesKey
from perfd.rules.files.rules_source import Entries, RulesSource
from perfd.rules.problems import TextError
from perfd.rules.promql.compiler import compile_query
from perfd.rules.unit_tests.series_notation import parse_series, parse_values

DEFAULT_INTERVAL_MS = 60_000
"""Between two evaluations, where a file does not say: promtool's own default."""

_FILE_KEYS = ("rule_files", "evaluation_interval", "group_eval_order", "tests")
_TEST_KEYS = (
    "name",
    "interval",
    "input_series",
    "alert_rule_test",
    "promql_expr_test",
    "external_labels",
    "external_url",
)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedAlert:
    """An alert that must fire, without its `alertname`."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCheck:
    """Exactly these alerts of one name fire at an instant."""

    time_ms: int
    alert: str
    expected: Sequence[ExpectedAlert]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryCheck:
    """An expression gives exactly these samples at an instant."""

    time_ms: int
    expression: str
    expected: Mapping[SeriesKey, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTest:
    """Input series, and the expected results of the rules. Time begins at 0."""

    name: str
    interval_ms: int
    series: Mapping[SeriesKey, Sequence[float | None]]
    alerts: Sequence[AlertCheck]
    queries: Sequence[QueryCheck]
    external_labels: Mapping[str, str] = field(default_factory=dict)
    external_url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTestFile:
    """The tests of one file, and the rules files that they are about."""

    path: Path
    rule_files: Sequence[Path]
    evaluation_interval_ms: int
    group_order: Sequence[str]
    tests: Sequence[RuleTest]


def read_tests(path: Path) -> RuleTestFile:
    """Read a file of unit tests; raises `RulesError` with all errors in it, one per line."""
    source = RulesSource.read(path)
    root = source.root() if not source.mistakes else None
    file = _Reader(source).file(path, root) if root is not None else None
    if file is None and not source.mistakes:
        source.note(1, 1, "the file is empty: write `rule_files` and `tests`")
    if source.mistakes or file is None:
        raise RulesError("\n".join(str(mistake) for mistake in sorted(source.mistakes)))
    return file


class _Reader:
    def __init__(self, source: RulesSource) -> None:
        self._source = source
        self._default_ms = DEFAULT_INTERVAL_MS

    def file(self, path: Path, root: yaml.Node) -> RuleTestFile:
        entries = self._source.mapping(root, "a file of rule tests", _FILE_KEYS)
        self._default_ms = self._source.duration_ms(entries, "evaluation_interval") or DEFAULT_INTERVAL_MS
        return RuleTestFile(
            path=path,
            rule_files=self._rule_files(path.parent, entries),
            evaluation_interval_ms=self._default_ms,
            group_order=self._source.list_of(
                entries, "group_eval_order", lambda node: self._source.scalar(node, "a group's name") or ""
            ),
            tests=self._source.list_of(entries, "tests", self._test),
        )

    def _rule_files(self, folder: Path, entries: Entries) -> list[Path]:
        """The files that the patterns name, relative to the file of tests."""

        def matching(node: yaml.Node) -> list[Path]:
            pattern = self._source.scalar(node, "a rules file") or ""
            found = sorted(_glob(folder, pattern))
            if not found:
                self._source.refuse(node, f"no rules file {pattern!r} in this file's folder")
            return found

        return [path for found in self._source.list_of(entries, "rule_files", matching) for path in found]

    def _test(self, node: yaml.Node) -> RuleTest:
        entries = self._source.mapping(node, "a test", _TEST_KEYS)
        return RuleTest(
            name=self._text(entries, "name"),
            interval_ms=self._source.duration_ms(entries, "interval") or self._default_ms,
            series=dict(self._source.list_of(entries, "input_series", self._input)),
            alerts=self._source.list_of(entries, "alert_rule_test", self._alert_check),
            queries=self._source.list_of(entries, "promql_expr_test", self._query_check),
            external_labels=self._texts(entries, "external_labels"),
            external_url=self._text(entries, "external_url"),
        )

    def _input(self, node: yaml.Node) -> tuple[SeriesKey, Sequence[float | None]]:
        entries = self._source.mapping(node, "an input series", ("series", "values"))
        key = self._parsed(node, entries, "series", parse_series)
        return key or SeriesKey(""), self._parsed(node, entries, "values", parse_values) or []

    def _alert_check(self, node: yaml.Node) -> AlertCheck:
        entries = self._source.mapping(node, "an alert test", ("eval_time", "alertname", "exp_alerts"))
        name = self._text(entries, "alertname")
        if not name:
            self._source.refuse(node, "an alert test needs `alertname`")
        return AlertCheck(
            time_ms=self._source.duration_ms(entries, "eval_time") or 0,
            alert=name,
            expected=self._source.list_of(entries, "exp_alerts", self._expected_alert),
        )

    def _expected_alert(self, node: yaml.Node) -> ExpectedAlert:
        entries = self._source.mapping(node, "an expected alert", ("exp_labels", "exp_annotations"))
        return ExpectedAlert(
            labels=self._texts(entries, "exp_labels"), annotations=self._texts(entries, "exp_annotations")
        )

    def _query_check(self, node: yaml.Node) -> QueryCheck:
        entries = self._source.mapping(node, "an expression test", ("expr", "eval_time", "exp_samples"))
        query = self._parsed(node, entries, "expr", compile_query)
        expected = {
            key: value
            for key, value in self._source.list_of(entries, "exp_samples", self._sample)
            if key is not None
        }
        return QueryCheck(
            time_ms=self._source.duration_ms(entries, "eval_time") or 0,
            expression=query.text if query else "",
            expected=expected,
        )

    def _sample(self, node: yaml.Node) -> tuple[SeriesKey | None, float]:
        entries = self._source.mapping(node, "an expected sample", ("labels", "value"))
        values = self._parsed(node, entries, "value", parse_values) or [None]
        value = values[0]
        return self._parsed(node, entries, "labels", parse_series), 0.0 if value is None else value

    def _parsed(self, node: yaml.Node, entries: Entries, key: str, parse: Callable[[str], _T]) -> _T | None:
        """The parsed text; an error if it is invalid."""
        if key not in entries:
            self._source.refuse(node, f"`{key}` is missing")
            return None
        text = self._source.text_of(entries, key)
        try:
            return None if text is None else parse(text)
        except TextError as error:
            self._source.refuse_text(entries[key][1], error, f"`{key}`: ")
            return None

    def _text(self, entries: Entries, key: str) -> str:
        return self._source.text_of(entries, key) or ""

    def _texts(self, entries: Entries, key: str) -> dict[str, str]:
        if key not in entries:
            return {}
        named = self._source.mapping(entries[key][1], f"`{key}`")
        return {name: self._source.scalar(node, f"{name!r}") or "" for name, (_, node) in named.items()}


def _glob(folder: Path, pattern: str) -> list[Path]:
    if not re.search(r"[*?\[]", pattern):
        path = folder / pattern
        return [path] if path.is_file() else []
    if Path(pattern).is_absolute():
        return list(Path(pattern).parent.glob(Path(pattern).name))
    # `Path.glob` takes no `..`, which the patterns of tests begin with.
    return list((folder / Path(pattern).parent).glob(Path(pattern).name))
