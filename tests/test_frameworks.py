"""Each row of the table of frameworks and launchers is shown by tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "frameworks.md"
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)(?:\[([\w.-]+)\])?`")


def _rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[-1] != "tests" and set(row[0]) != {"-"}]


@cache
def _functions(file: Path) -> dict[str, str]:
    """Each test of a file with the source of its cases: decorators, and arguments in them."""
    tree = ast.parse(file.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {one.name: "\n".join(map(ast.unparse, one.decorator_list)) for one in functions}


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row[0][:40])
def test_a_row_is_shown_by_tests_that_exist(row: list[str]) -> None:
    cited = _TEST.findall(row[-1])

    assert cited, "no test is named"
    assert len(cited) == row[-1].count("tests/"), "a test is not named as FILE::TEST or FILE::TEST[CASE]"
    for file, name, case in cited:
        functions = _functions(ROOT / file)
        assert name in functions
        assert not case or repr(case) in functions[name], f"{name} has no case {case}"


def test_each_hook_of_a_framework_has_a_row() -> None:
    modules = {path.stem: ast.parse(path.read_text()) for path in (ROOT / "perfd" / "hook").glob("*.py")}
    hooks = {name for name, tree in modules.items() if (ast.get_docstring(tree) or "").startswith("For ")}
    page = PAGE.read_text().lower()

    assert {"transformers", "composer"} < hooks
    assert {name for name in hooks if f"| {name}" not in page} == set()
