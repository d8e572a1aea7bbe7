"""Prometheus rules files, and the engine that evaluates them."""

from perfd.rules.files import builtin_rules, load_rules
from perfd.rules.rule_engine import RuleEngine
from perfd.rules.rule_model import (
    AlertingRule,
    RecordingRule,
    RuleSet,
)
from perfd.rules.series_store import SeriesStore

__all__ = [
    "AlertingRule",
    "RecordingRule",
    "RuleEngine",
    "RuleSet",
    "SeriesStore",
    "builtin_rules",
    "load_rules",
]
