"""Each row of the table of frameworks and launchers is shown by tests that exist."""

from __future__ import annotations

import ast

import pytest

from tests.support.cited_tests import ROOT, check_cited_tests, table_rows, unknown_to_pytest

PAGE = ROOT / "docs" / "frameworks.md"


@pytest.mark.parametrize(
    "row", [row for row in table_rows(PAGE) if row[-1] != "tests"], ids=lambda row: row[0][:40]
)
def test_a_row_is_shown_by_tests_that_exist(row: list[str]) -> None:
    assert check_cited_tests(row[-1]), "no test is named"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["frameworks.md", "profiling-tasks.md"])
def test_pytest_runs_each_test_by_its_name_on_a_page(page: str) -> None:
    assert unknown_to_pytest(ROOT / "docs" / page) == set()


def test_each_hook_of_a_framework_has_a_row() -> None:
    modules = {path.stem: ast.parse(path.read_text()) for path in (ROOT / "perfd" / "hook").glob("*.py")}
    hooks = {name for name, tree in modules.items() if (ast.get_docstring(tree) or "").startswith("For ")}
    page = PAGE.read_text().lower()

    assert {"transformers", "composer"} < hooks
    assert {name for name in hooks if f"| {name}" not in page} == set()
