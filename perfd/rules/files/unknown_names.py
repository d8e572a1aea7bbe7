"""Unknown names in rules: metrics that perfd does not export, and missing capture profiles."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from perfd.rules.promql.compiler import compile_query
from perfd.rules.rule_model import AlertingRule, RecordingRule, RuleGroup

_OURS = ("perfd_", "perfd:")


def recorded_metrics(groups: Iterable[RuleGroup]) -> set[str]:
    """The names that rules record."""
    return {rule.record for group in groups for rule in group.rules if isinstance(rule, RecordingRule)}


def unknown_metrics(groups: Iterable[RuleGroup], known: Collection[str]) -> list[str]:
    """A sentence for each unknown metric with perfd's prefix that a rule reads.

    Metrics with other prefixes are not checked: Prometheus may scrape them elsewhere.
    """
    sentences = []
    for rule in (rule for group in groups for rule in group.rules):
        names = {read.selection.name for read in compile_query(rule.expression).reads}
        for name in sorted(name for name in names if name and name.startswith(_OURS) and name not in known):
            nearest = difflib.get_close_matches(name, sorted(known), n=1)
            meant = f"; did you mean {nearest[0]}?" if nearest else "."
            sentences.append(f"{rule.name} reads {name}, which is neither exported nor recorded{meant}")
    return sentences


def unknown_profiles(groups: Iterable[RuleGroup], label: str, known: Collection[str]) -> list[str]:
    """A sentence for each unknown capture profile in a rule's label `capture`.

    The result of a template in the label is only known when the alert fires.
    """
    rules: dict[str, list[str]] = {}
    for rule in (rule for group in groups for rule in group.rules if isinstance(rule, AlertingRule)):
        asked = rule.labels.get(label)
        if asked and asked.text and "{{" not in asked.text:
            for name in (part.strip() for part in asked.text.split("+")):
                if name not in known:
                    rules.setdefault(name, []).append(rule.name)
    there = ", ".join(sorted(known)) or "none"
    return [
        f"{' and '.join(dict.fromkeys(names))} cannot start a capture: no capture profile {profile!r};"
        f" capture_profiles has: {there}."
        for profile, names in rules.items()
    ]
