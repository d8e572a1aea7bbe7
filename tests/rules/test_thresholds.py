"""Thresholds: one value for findings and alerts, each with a unit, a meaning and a source."""

from __future__ import annotations

import re
import runpy
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from perfd.thresholds import THRESHOLDS, threshold_rows

RULES = Path(__file__).parents[2] / "rules"
COMPARED = re.compile(r"(?P<sign>[<>]=?|[!=]=|/)\s*(?P<number>\d+(?:\.\d+)?)")
# `== 1` asks for a state and `> 0` whether there is any: neither is a threshold.
STRUCTURAL = {("==", 1.0), ("==", 0.0), (">", 0.0)}


def compared_values() -> dict[str, set[float]]:
    found: dict[str, set[float]] = defaultdict(set)
    for path in sorted(RULES.glob("*.yaml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                for match in COMPARED.finditer(rule["expr"]):
                    number = float(match["number"])
                    if (match["sign"], number) not in STRUCTURAL:
                        found[rule.get("alert") or rule["record"]].add(number)
    return dict(found)


def test_every_number_that_a_shipped_rule_compares_with_is_the_threshold_of_that_rule():
    by_rule: dict[str, set[float]] = defaultdict(set)
    for row in threshold_rows().values():
        for rule in row.rules:
            by_rule[rule].add(float(row.value))
    assert compared_values() == dict(by_rule)


def test_the_comparisons_of_the_rules_are_found():
    assert compared_values()["PerfdDataLoading"] == {0.05, 0.9, 15.0}
    assert len(compared_values()) > 20


@pytest.mark.parametrize("name", threshold_rows())
def test_a_threshold_has_a_meaning_in_one_sentence_and_a_source_of_a_known_kind(name):
    row = threshold_rows()[name]
    assert row.meaning.endswith(".")
    assert ". " not in row.meaning
    assert row.source.startswith(("guide: ", "paper: ", "measured: ", "chosen: "))
    assert row.unit
    assert getattr(THRESHOLDS, name) == row.value


def test_a_ratio_is_no_percentage():
    assert all(0 < row.value <= 3 for name, row in threshold_rows().items() if name.endswith("_ratio"))


def test_the_alert_about_a_finding_is_not_more_sensitive_than_the_finding():
    assert THRESHOLDS.communication_alert_ratio >= THRESHOLDS.communication_ratio
    assert THRESHOLDS.optimizer_alert_ratio >= THRESHOLDS.optimizer_ratio


def test_the_table_in_the_documentation_is_that_of_the_file():
    made = runpy.run_path(str(Path(__file__).parents[2] / "deploy/reference/make_thresholds_reference.py"))
    assert made["main"](["--check"]) == 0
