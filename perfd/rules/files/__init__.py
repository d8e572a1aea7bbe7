"""Reads and checks rules files."""

from perfd.rules.files.rules_loader import RulesFile, builtin_rules, load_rules, read_rules
from perfd.rules.files.rules_source import RulesSource
from perfd.rules.files.unknown_names import recorded_metrics, unknown_metrics, unknown_profiles

__all__ = [
    "RulesFile",
    "RulesSource",
    "builtin_rules",
    "load_rules",
    "read_rules",
    "recorded_metrics",
    "unknown_metrics",
    "unknown_profiles",
]
