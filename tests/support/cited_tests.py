"""Tests that a table of the documentation names, as `FILE::TEST` or `FILE::TEST[CASE]` in backticks."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)(?:\[([\w.-]+)\])?`")


def check_cited_tests(cell: str) -> int:
    """How many tests a cell names; asserts that each is written so, and exists."""
    cited = _TEST.findall(cell)

    assert len(cited) == cell.count("tests/"), "a test is not named as FILE::TEST or FILE::TEST[CASE]"
    for file, name, _case in cited:
        assert name in _functions(ROOT / file), f"{file} has no {name}"
    return len(cited)


def unknown_to_pytest(page: Path) -> set[str]:
    """The tests that a page names and pytest would not run by that name."""
    cited = {(file, name, case) for file, name, case in _TEST.findall(page.read_text())}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        *sorted({file for file, _, _ in cited}),
    ]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    known = {*listed, *(line.partition("[")[0] for line in listed)}
    named = {f"{file}::{name}[{case}]" if case else f"{file}::{name}" for file, name, case in cited}
    return named - known


def table_rows(page: Path) -> list[list[str]]:
    """The cells of all rows of a page's tables, without the rows below heads."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]
    return [row for row in cells if set(row[0]) != {"-"}]


@cache
def _functions(file: Path) -> set[str]:
    """The tests of a file."""
    tree = ast.parse(file.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
