"""`perfd rules check` and `perfd rules test`: what promtool does, with the embedded engine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from perfd.aggregator.series import MetricNames
from perfd.capture.policy.coordinator import CAPTURE_LABEL
from perfd.config import AggregatorConfig
from perfd.errors import RulesError
from perfd.metrics.catalog import AGENT_PAGE_METRICS, GATEWAY_METRICS
from perfd.rules.files import (
    RulesFile,
    builtin_rules,
    read_rules,
    recorded_metrics,
    unknown_metrics,
    unknown_profiles,
)
from perfd.rules.unit_tests import TestFailure, read_tests, run_tests
from perfd.session.session_config import load_aggregator

_CHECK_HELP = """\
Exit code 0: all files are valid; 1: a file has mistakes. With --json:
{"schema": "perfd.rules.check/1", "ok", "files": [{"path", "rules",
 "mistakes": [{"line", "column", "message"}], "warnings": [sentence]}]}
A warning (a metric of perfd's that nothing exports, a capture profile that is not
there) leaves the exit code as it is."""
_TEST_HELP = """\
The files are in the format of `promtool test rules`. Exit code 0: all tests
pass; 1: a test fails, or a file has mistakes. With --json:
{"schema": "perfd.rules.test/1", "ok", "files": [{"path", "tests", "error",
 "failures": [{"test", "about", "expected", "got"}]}]}"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    raw = argparse.RawDescriptionHelpFormatter
    check = actions.add_parser(
        "check", help="check rules files and report every mistake", epilog=_CHECK_HELP, formatter_class=raw
    )
    check.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        type=Path,
        help="rules files (default: the shipped rules)",
    )
    check.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="configuration of perfd aggregator or perfd run whose capture profiles the rules may name",
    )
    test = actions.add_parser(
        "test", help="run unit tests of rules files", epilog=_TEST_HELP, formatter_class=raw
    )
    test.add_argument("files", metavar="FILE", nargs="+", type=Path, help="files of unit tests")
    for action in (check, test):
        action.add_argument("--json", action="store_true", help="print one JSON object, described below")


def run(args: argparse.Namespace) -> int:
    """Check or test; 1 when something is wrong."""
    if args.action == "check":
        return _check(args.files or builtin_rules(), args.config, as_json=args.json)
    return _test(args.files, as_json=args.json)


def _check(paths: Sequence[Path], config: Path | None, *, as_json: bool) -> int:
    files = [read_rules(path) for path in paths]
    ok = not any(file.mistakes for file in files)
    warnings = _warnings(files, config)
    if as_json:
        checked = [_file(file, warnings[file.path]) for file in files]
        print(json.dumps({"schema": "perfd.rules.check/1", "ok": ok, "files": checked}))
        return int(not ok)
    for file in files:
        print(f"Checking {file.path}")
        if file.mistakes:
            print("  FAILED:", file=sys.stderr)
            print("\n".join(str(mistake) for mistake in file.mistakes), file=sys.stderr)
        else:
            print(f"  SUCCESS: {file.rules} rules found")
        for warning in warnings[file.path]:
            print(f"  WARNING: {warning}", file=sys.stderr)
        print()
    return int(not ok)


def _warnings(files: Sequence[RulesFile], config: Path | None) -> Mapping[str, Sequence[str]]:
    """What is doubtful in each file, by its path."""
    metrics = _known_metrics(files)
    profiles = (load_aggregator(config) if config else AggregatorConfig()).capture_profiles
    hint = "" if config else " If a configuration has others, name it: --config FILE."
    return {
        file.path: [
            *unknown_metrics(file.groups, metrics),
            *(f"{said}{hint}" for said in unknown_profiles(file.groups, CAPTURE_LABEL, profiles)),
        ]
        for file in files
    }


def _known_metrics(files: Sequence[RulesFile]) -> frozenset[str]:
    """What perfd exports, and what these files and the rules that ship record."""
    groups = [group for file in (*files, *map(read_rules, builtin_rules())) for group in file.groups]
    pages = {metric.name for metric in (*AGENT_PAGE_METRICS, *GATEWAY_METRICS)}
    return MetricNames.installed().all() | pages | recorded_metrics(groups)


def _file(file: RulesFile, warnings: Sequence[str]) -> dict[str, Any]:
    mistakes = [
        {"line": mistake.line, "column": mistake.column, "message": mistake.message}
        for mistake in file.mistakes
    ]
    return {
        "path": file.path,
        "rules": file.rules,
        "mistakes": mistakes,
        "warnings": list(warnings),
    }


def _test(paths: Sequence[Path], *, as_json: bool) -> int:
    results = [_result(path) for path in paths]
    ok = all(result["error"] is None and not result["failures"] for result in results)
    if as_json:
        print(json.dumps({"schema": "perfd.rules.test/1", "ok": ok, "files": results}))
        return int(not ok)
    for result in results:
        print(f"Unit Testing:  {result['path']}")
        if result["error"] is None and not result["failures"]:
            print("  SUCCESS\n")
            continue
        print("  FAILED:", file=sys.stderr)
        print(result["error"] or "\n".join(map(_failure_text, result["failures"])), file=sys.stderr)
        print()
    return int(not ok)


def _result(path: Path) -> dict[str, Any]:
    try:
        file = read_tests(path)
        failures: Sequence[TestFailure] = run_tests(file)
    except RulesError as error:
        return {"path": str(path), "tests": 0, "error": str(error), "failures": []}
    tests = len(file.tests)
    return {"path": str(path), "tests": tests, "error": None, "failures": [asdict(f) for f in failures]}


def _failure_text(failure: dict[str, Any]) -> str:
    lines = [f"    name: {failure['test']},"] if failure["test"] else []
    lines.append(f"    {failure['about']},")
    for title, texts in (("exp", failure["expected"]), ("got", failure["got"])):
        inner = "".join(f"\n            {text}" for text in texts)
        lines.append(f"        {title}:[{inner}]")
    return "\n".join(lines)
