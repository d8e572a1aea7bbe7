"""Unit tests of rules, in the format of `promtool test rules`."""

from perfd.rules.unit_tests.test_files import read_tests
from perfd.rules.unit_tests.test_runner import TestFailure, run_tests

__all__ = [
    "TestFailure",
    "read_tests",
    "run_tests",
]
