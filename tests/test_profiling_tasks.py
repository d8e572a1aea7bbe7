"""Each row of the table of profiling tasks names commands and tests that exist, and its head counts them."""

from __future__ import annotations

import re
import shlex
from collections import Counter

import pytest

from perfd.cli import build_parser
from tests.support.cited_tests import ROOT, check_cited_tests, table_rows

PAGE = ROOT / "docs" / "profiling-tasks.md"
ROWS = [row for row in table_rows(PAGE) if row[0].isdigit()]
_COUNTS = re.compile(r"(\d+) tasks of five guides, (\d+) done, (\d+)\s+in part, (\d+) not\.")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_a_command_that_parses_and_tests_that_exist(row: list[str]) -> None:
    _number, task, state, command, shown_by = row
    command = command.strip("`").replace("\\|", "|")

    assert task
    assert state in {"done", "partly", "no"}
    assert check_cited_tests(shown_by) or state == "no"
    assert command or state == "no"
    if command.startswith("perfd "):
        words = shlex.split(command)[1:]
        build_parser({words[0]}).parse_args(words)
    else:
        assert command in {"", "perfd.hook.benchmark"}


def test_the_head_counts_the_rows() -> None:
    states = Counter(row[2] for row in ROWS)
    found = _COUNTS.search(PAGE.read_text())

    assert found
    assert [row[0] for row in ROWS] == [str(number) for number in range(1, 235)]
    assert list(map(int, found.groups())) == [len(ROWS), states["done"], states["partly"], states["no"]]
