"""Tests that a table of the documentation names, as `FILE::TEST` or `FILE::TEST[CASE]` in backticks."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)(?:\[([\w.-]+)\])?`")


def check_cited_tests(cell: str) -> int:
    """How many tests a cell names; asserts that each is written so, and exists."""
    cited = _TEST.findall(cell)

    assert len(cited) == cell.count("tests/"), "a test is not named as FILE::TEST or FILE::TEST[CASE]"
    for file, name, case in cited:
        functions = _functions(ROOT / file)
        assert name in functions, f"{file} has no {name}"
        assert not case or repr(case) in functions[name], f"{name} has no case {case}"
    return len(cited)


def table_rows(page: Path) -> list[list[str]]:
    """The cells of all rows of a page's tables, without the rows below heads."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]
    return [row for row in cells if set(row[0]) != {"-"}]


@cache
def _functions(file: Path) -> dict[str, str]:
    """Each test of a file with the source of its cases: decorators, and arguments in them."""
    tree = ast.parse(file.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {one.name: "\n".join(map(ast.unparse, one.decorator_list)) for one in functions}
