"""The rules that ship: right, tested, explained, and about metrics that exist."""

import re
from pathlib import Path
from textwrap import dedent

import pytest

from perfd.collector_loading import collector_entry_points, load_collector
from perfd.metrics.catalog import METRICS, raw_metric
from perfd.model import JOB_LABEL
from perfd.rules import AlertingRule, RecordingRule, builtin_rules, load_rules
from perfd.rules.promql.compiler import compile_query
from perfd.rules.promql.subset import AGGREGATIONS, FUNCTIONS
from perfd.rules.unit_tests.test_files import read_tests
from perfd.rules.unit_tests.test_runner import run_tests

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = sorted((ROOT / "rules").glob("*.yaml"))
RULES = [rule for group in load_rules(FILES).groups for rule in group.rules]
ALERTS = [rule for rule in RULES if isinstance(rule, AlertingRule)]


def known_metrics() -> set[str]:
    """What perfd exports, and what its rules record."""
    columns = {
        raw_metric(column).name
        for name in collector_entry_points()
        for column in load_collector(name).columns
    }
    recorded = {rule.record for rule in RULES if isinstance(rule, RecordingRule)}
    # `ALERTS` is what an engine itself records of alerts.
    return {*METRICS, *columns, *recorded, "ALERTS"}


def test_the_files_are_found_where_the_aggregator_looks() -> None:
    assert builtin_rules() == FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_passes_its_unit_tests(path: Path) -> None:
    file = read_tests(HERE / path.name)
    assert file.rule_files == [HERE / "../../rules" / path.name]
    assert run_tests(file) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_alert_fires_in_a_unit_test(path: Path) -> None:
    alerts = {rule.name for group in load_rules([path]).groups for rule in group.rules if rule in ALERTS}
    fired = {
        key.label("alertname")
        for test in read_tests(HERE / path.name).tests
        for check in test.queries
        for key in check.expected
        if key.label("alertstate") == "firing"
    }
    assert alerts == fired


def test_each_metric_that_a_rule_reads_is_exported() -> None:
    known = known_metrics()
    read = {query.selection.name for rule in RULES for query in compile_query(rule.expression).reads}
    assert {name for name in read if name not in known} == set()


def test_each_metric_that_an_annotation_names_is_exported() -> None:
    known = known_metrics()
    texts = [template.text for rule in ALERTS for template in rule.annotations.values()]
    named = {name for text in texts for name in re.findall(r"\bperfd[_:]\w+", text)}
    assert {name for name in named if name not in {*known, JOB_LABEL}} == set()


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule.name)
def test_each_alert_says_how_bad_it_is_and_what_to_do(rule: AlertingRule) -> None:
    assert rule.labels["severity"].text in {"info", "warning", "critical"}
    assert set(rule.annotations) == {"summary", "description", "runbook_url"}
    assert len(rule.annotations["description"].text) > 50


def test_each_alert_is_explained_in_the_documentation() -> None:
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert {rule.name for rule in ALERTS if f"`{rule.name}`" not in text} == set()


def test_names_are_used_once() -> None:
    names = [rule.name for rule in ALERTS]
    assert len(names) == len(set(names))


def test_the_documentation_names_the_whole_subset() -> None:
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert {name for name in FUNCTIONS | AGGREGATIONS if f"`{name}`" not in text} == set()


def test_the_example_of_the_documentation_passes_its_own_test(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    example = text[text.index("    # mine.yaml") : text.index("## The subset")]
    rules, tests = example.split("    # mine-test.yaml")
    (tmp_path / "mine.yaml").write_text(dedent(rules))
    (tmp_path / "mine-test.yaml").write_text(dedent(tests))
    assert run_tests(read_tests(tmp_path / "mine-test.yaml")) == []
