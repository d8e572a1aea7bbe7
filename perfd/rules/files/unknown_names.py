"""Names in rules that nothing answers to: metrics that nothing exports, capture profiles that are missing."""

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
    """A sentence for each metric that a rule reads and that has a name of perfd's, but a wrong one.

    Metrics of others are nobody's to judge here: a Prometheus may scrape them.
    """
    sentences = []
    for rule in (rule for group in groups for rule in group.rules):
        names = {read.selection.name for read in compile_query(rule.expression).reads}
        for name in sorted(name for name in names if name and name.startswith(_OURS) and name not in known):
            nearest = difflib.get_close_matches(name, sorted(known), n=1)
            meant = f"; did you mean {nearest[0]}?" if nearest else "."
            sentences.append(f"{rule.name} reads {name}, which nothing here exports or records{meant}")
    return sentences


def unknown_profiles(groups: Iterable[RuleGroup], label: str, known: Collection[str]) -> list[str]:
    """A sentence for each capture profile that the label of a rule names and that is not `known`.

    What a template makes of a label is only known when the alert fires.
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
        f"No capture follows {' and '.join(dict.fromkeys(names))}: there is no capture profile {profile!r};"
        f" capture_profiles has: {there}."
        for profile, names in rules.items()
    ]
