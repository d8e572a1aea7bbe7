"""Rules files in the language of Prometheus, and the engine that evaluates them."""

from perfd.rules.alerting import External
from perfd.rules.builtin import builtin_rules
from perfd.rules.engine import RuleEngine
from perfd.rules.loader import load_rules
from perfd.rules.model import (
    Alert,
    AlertChange,
    AlertingRule,
    AlertState,
    Evaluation,
    RecordingRule,
    RuleFailure,
    RuleGroup,
    RuleSet,
)
from perfd.rules.store import SeriesStore

__all__ = [
    "Alert",
    "AlertChange",
    "AlertState",
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
