"""Checks a node's prerequisites and suggests fixes: facts are probed, checks are pure functions."""

from perfd.doctor.check_result import CheckResult, Level
from perfd.doctor.node_checks import SCHEMA, diagnose, to_json, worst
from perfd.doctor.node_probe import probe

__all__ = [
    "SCHEMA",
    "CheckResult",
    "Level",
    "diagnose",
    "probe",
    "to_json",
    "worst",
]
