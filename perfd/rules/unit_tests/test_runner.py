"""Runs unit tests of rules, as `promtool test rules` does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from perfd.metrics.series import SeriesKey
from perfd.rules.alert_states import External
from perfd.rules.durations import format_duration
from perfd.rules.files import load_rules
from perfd.rules.go_numbers import go_float
from perfd.rules.promql.compiler import compile_query
from perfd.rules.promql.series_keys import EvaluationError, describe
from perfd.rules.rule_engine import RuleEngine
from perfd.rules.rule_model import Evaluation, RuleSet
from perfd.rules.series_store import SeriesStore
from perfd.rules.unit_tests.test_files import AlertCheck, ExpectedAlert, QueryCheck, RuleTest, RuleTestFile

_TOLERANCE = 1e-12
"""Sums may differ from Prometheus in the last digit, because of another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestFailure:
    """A check that did not hold."""

    __test__ = False  # It is not a test of pytest's.

    test: str
    about: str
    """The alert or expression, and the time."""
    expected: Sequence[str]
    got: Sequence[str]


def run_tests(file: RuleTestFile) -> list[TestFailure]:
    """All failures of the tests of a file; raises `RulesError` when its rules are wrong."""
    rules = _in_order(load_rules(file.rule_files), file.group_order)
    return [failure for test in file.tests for failure in _run(test, rules, file.evaluation_interval_ms)]


def _in_order(rules: RuleSet, names: Sequence[str]) -> RuleSet:
    """The groups in the order that the tests ask for; each is evaluated at each step, as promtool does."""
    order = {name: place for place, name in enumerate(names)}
    groups = sorted(rules.groups, key=lambda group: order.get(group.name, 0))
    return RuleSet(groups=tuple(replace(group, interval_s=None) for group in groups))


def _run(test: RuleTest, rules: RuleSet, step_ms: int) -> Iterator[TestFailure]:
    external = External(labels=tuple(sorted(test.external_labels.items())), url=test.external_url)
    engine = RuleEngine(rules, external=external)
    store = SeriesStore()
    times_ms = [check.time_ms for check in test.alerts] + [check.time_ms for check in test.queries]
    end_ms = max(times_ms, default=-1)
    appended = 0
    for now_ms in range(0, end_ms + 1, step_ms):
        while appended * test.interval_ms <= now_ms:
            _append(store, test, appended)
            appended += 1
        evaluation = engine.evaluate(store, now_ms / 1000)
        for failure in evaluation.failures:
            yield TestFailure(
                test=test.name,
                about=f"rule: {failure.rule}, time: {format_duration(now_ms)}",
                expected=[],
                got=[failure.message],
            )
        for check in test.alerts:
            if now_ms <= check.time_ms < now_ms + step_ms:
                yield from _check_alerts(test, check, evaluation)
    for query in test.queries:
        yield from _check_query(test, query, store)


def _append(store: SeriesStore, test: RuleTest, place: int) -> None:
    samples: dict[SeriesKey, float] = {}
    for key, values in test.series.items():
        value = values[place] if place < len(values) else None
        if value is not None:
            samples[key] = value
    if samples:
        store.append_samples(place * test.interval_ms / 1000, samples)


def _check_alerts(test: RuleTest, check: AlertCheck, evaluation: Evaluation) -> Iterator[TestFailure]:
    got = sorted(
        _alert_text(alert.labels, alert.annotations)
        for alert in evaluation.alerts
        if alert.name == check.alert and alert.firing
    )
    expected = sorted(_expected_text(alert, check.alert) for alert in check.expected)
    if got != expected:
        about = f"alertname: {check.alert}, time: {format_duration(check.time_ms)}"
        yield TestFailure(test=test.name, about=about, expected=expected, got=got)


def _check_query(test: RuleTest, check: QueryCheck, store: SeriesStore) -> Iterator[TestFailure]:
    about = f"expr: {check.expression!r}, time: {format_duration(check.time_ms)}"
    expected = _sample_texts(check.expected)
    try:
        got = dict(compile_query(check.expression).evaluate(store, check.time_ms).samples())
    except EvaluationError as error:
        yield TestFailure(test=test.name, about=about, expected=expected, got=[str(error)])
        return
    if got.keys() != check.expected.keys() or not all(
        _same(value, got[key]) for key, value in check.expected.items()
    ):
        yield TestFailure(test=test.name, about=about, expected=expected, got=_sample_texts(got))


def _same(expected: float, got: float) -> bool:
    return math.isclose(expected, got, rel_tol=_TOLERANCE) or (math.isnan(expected) and math.isnan(got))


def _sample_texts(samples: Mapping[SeriesKey, float]) -> list[str]:
    return sorted(f"{describe(key)} {go_float(value)}" for key, value in samples.items())


def _expected_text(alert: ExpectedAlert, name: str) -> str:
    labels = {key: value for key, value in {**alert.labels, "alertname": name}.items() if value}
    return _alert_text(labels, alert.annotations)


def _alert_text(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    return f"Labels:{describe(SeriesKey.of('', labels))} Annotations:{_annotations(annotations)}"


def _annotations(annotations: Mapping[str, str]) -> str:
    inner = ", ".join(f"{name}={text!r}" for name, text in sorted(annotations.items()))
    return f"{{{inner}}}"
