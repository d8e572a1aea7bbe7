"""Prometheus rules files, and the engine that evaluates them."""

from perfd.rules.alert_states import External
from perfd.rules.files import builtin_rules, load_rules
from perfd.rules.rule_engine import RuleEngine
from perfd.rules.rule_model import (
    AlertingRule,
    Evaluation,
    RecordingRule,
    RuleFailure,
    RuleGroup,
    RuleSet,
)
from perfd.rules.series_store import SeriesStore

__all__ = [
    "AlertingRule",
    "Evaluation",
    "External",
    "RecordingRule",
    "RuleEngine",
    "RuleFailure",
    "RuleGroup",
    "RuleSet",
    "SeriesStore",
    "builtin_rules",
    "load_rules",
]
