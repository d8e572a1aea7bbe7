"""Reads Prometheus rules files, strictly: every error is reported, with its place.

The checks are those of model/rulefmt of Prometheus 2.42, and that each
expression and template is of the subset that the embedded engine evaluates.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import yaml

from perfd.errors import RulesError
from perfd.rules.files.rules_source import Entries, Mistake, RulesSource
from perfd.rules.label_matchers import METRIC_NAME_LABEL
from perfd.rules.problems import TextError
from perfd.rules.promql.compiler import compile_query
from perfd.rules.rule_model import AlertingRule, RecordingRule, Rule, RuleGroup, RuleSet
from perfd.rules.templates import Template, compile_template

_GROUP_KEYS = ("name", "interval", "limit", "rules")
_RULE_KEYS = ("record", "alert", "expr", "for", "keep_firing_for", "labels", "annotations")
_ALERT_ONLY = ("for", "keep_firing_for", "annotations")
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesFile:
    """A file's valid groups, and its errors."""

    path: str
    groups: tuple[RuleGroup, ...]
    mistakes: tuple[Mistake, ...]

    @property
    def rules(self) -> int:
        """The number of rules."""
        return sum(len(group.rules) for group in self.groups)


def load_rules(files: Iterable[Path]) -> RuleSet:
    """All rules of some files; one that is named twice counts once.

    Raises `RulesError` with all errors of all files, one per line.
    """
    read = [read_rules(path) for path in {os.path.realpath(path): path for path in files}.values()]
    mistakes = [mistake for file in read for mistake in file.mistakes]
    if mistakes:
        raise RulesError("\n".join(str(mistake) for mistake in mistakes))
    return RuleSet(groups=tuple(group for file in read for group in file.groups))


def read_rules(path: Path) -> RulesFile:
    """Read one file; errors are part of the result."""
    return parse_rules(RulesSource.read(path))


def parse_rules(source: RulesSource) -> RulesFile:
    """Read the text of one rules file."""
    root = source.root()
    groups = _Reader(source).groups(root) if root is not None else ()
    return RulesFile(path=source.name, groups=tuple(groups), mistakes=tuple(sorted(source.mistakes)))


class _Reader:
    def __init__(self, source: RulesSource) -> None:
        self._source = source

    def groups(self, root: yaml.Node) -> list[RuleGroup]:
        entries = self._source.mapping(root, "a rules file", ("groups",))
        groups: list[RuleGroup] = []
        names: set[str] = set()
        for node, group in self._source.list_of(entries, "groups", lambda node: (node, self._group(node))):
            if group is not None:
                if group.name in names:
                    self._source.refuse(node, f"duplicate group {group.name!r}")
                names.add(group.name)
                groups.append(group)
        return groups

    def _group(self, node: yaml.Node) -> RuleGroup | None:
        entries = self._source.mapping(node, "a group", _GROUP_KEYS)
        name = self._required(node, entries, "name", "a group")
        interval_s = self._duration_s(entries, "interval")
        limit = self._limit(entries)
        rules: list[Rule] = []
        seen: set[object] = set()
        for item, rule in self._source.list_of(entries, "rules", lambda node: (node, self._rule(node))):
            if rule is None:
                continue
            identity = _identity(rule)
            if identity in seen:
                self._source.refuse(item, f"duplicate rule {rule.name!r} with the same labels")
            seen.add(identity)
            rules.append(rule)
        if not name:
            return None
        return RuleGroup(
            name=name,
            file=self._source.name,
            rules=tuple(rules),
            interval_s=interval_s or None,
            limit=limit,
        )

    def _limit(self, entries: Entries) -> int:
        text = self._source.text_of(entries, "limit")
        if text is None:
            return 0
        if not text.isdecimal():
            self._source.refuse(entries["limit"][1], f"`limit` must be a whole number, not {text!r}")
            return 0
        return int(text)

    def _rule(self, node: yaml.Node) -> Rule | None:
        before = len(self._source.mistakes)
        entries = self._source.mapping(node, "a rule", _RULE_KEYS)
        if not entries:
            if before == len(self._source.mistakes):
                self._source.refuse(node, "the rule is empty")
            return None
        if ("record" in entries) == ("alert" in entries):
            self._source.refuse(node, "a rule needs either `record` or `alert`")
        expression = self._expression(node, entries)
        rule = self._alert(entries, expression) if "alert" in entries else self._record(entries, expression)
        return rule if before == len(self._source.mistakes) else None

    def _record(self, entries: Entries, expression: str) -> RecordingRule:
        for key in _ALERT_ONLY:
            if key in entries and "record" in entries:
                self._source.refuse(entries[key][0], f"`{key}` is for alerts; this is a recording rule")
        name = self._source.text_of(entries, "record") or ""
        if "record" in entries and not _METRIC_NAME.fullmatch(name):
            self._source.refuse(entries["record"][1], f"{name!r} is not a valid metric name")
        labels = {label: text for label, (_, text) in self._named_texts(entries, "labels", "a label").items()}
        return RecordingRule(record=name, expression=expression, labels=labels)

    def _alert(self, entries: Entries, expression: str) -> AlertingRule:
        name = self._source.text_of(entries, "alert") or ""
        if not name:
            self._source.refuse(entries["alert"][1], "the alert needs a name")
        return AlertingRule(
            alert=name,
            expression=expression,
            for_s=self._duration_s(entries, "for"),
            keep_firing_for_s=self._duration_s(entries, "keep_firing_for"),
            labels=self._templates(entries, "labels", "a label"),
            annotations=self._templates(entries, "annotations", "an annotation"),
        )

    def _expression(self, node: yaml.Node, entries: Entries) -> str:
        text = self._required(node, entries, "expr", "a rule") or ""
        if text:
            try:
                compile_query(text)
            except TextError as error:
                self._source.refuse_text(entries["expr"][1], error, "expression: ")
        return text

    def _named_texts(self, entries: Entries, key: str, what: str) -> dict[str, tuple[yaml.Node, str]]:
        """The entries of `labels` or `annotations`: the node of each value and its text."""
        texts: dict[str, tuple[yaml.Node, str]] = {}
        if key not in entries:
            return texts
        for name, (key_node, node) in self._source.mapping(entries[key][1], f"`{key}`").items():
            if not _LABEL_NAME.fullmatch(name) or (key == "labels" and name == METRIC_NAME_LABEL):
                self._source.refuse(key_node, f"{name!r} is not a valid name for {what}")
            text = self._source.scalar(node, f"{what} {name!r}")
            if text is not None:
                texts[name] = (node, text)
        return texts

    def _templates(self, entries: Entries, key: str, what: str) -> dict[str, Template]:
        templates: dict[str, Template] = {}
        for name, (node, text) in self._named_texts(entries, key, what).items():
            try:
                templates[name] = compile_template(text)
            except TextError as error:
                self._source.refuse_text(node, error, f"{key} {name!r}: ")
        return templates

    def _required(self, node: yaml.Node, entries: Entries, key: str, what: str) -> str | None:
        text = self._source.text_of(entries, key)
        if key not in entries:
            self._source.refuse(node, f"{what} needs `{key}`")
        elif text == "":
            self._source.refuse(entries[key][1], f"`{key}` is empty")
        return text

    def _duration_s(self, entries: Entries, key: str) -> float:
        return (self._source.duration_ms(entries, key) or 0) / 1000


def _identity(rule: Rule) -> tuple[str, str, frozenset[tuple[str, str]]]:
    """The identity of a rule: two rules of a group with the same one would make the same series."""
    if isinstance(rule, AlertingRule):
        return ("alert", rule.alert, frozenset((name, label.text) for name, label in rule.labels.items()))
    return ("record", rule.record, frozenset(rule.labels.items()))


def builtin_rules() -> list[Path]:
    """The shipped rules files, in the order in which they are evaluated.

    An installed package has them as data; in a checkout they are in the folder `rules` next
    to the package. Raises `RulesError` if there are none, because silence must not look like health.
    """
    package = Path(str(files("perfd")))
    for folder in (package / "data" / "rules", package.parent / "rules"):
        found = sorted(folder.glob("*.yaml"))
        if found:
            return found
    raise RulesError("perfd's rules are missing from this installation: reinstall it.")
