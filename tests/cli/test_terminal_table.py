from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from perfd.cli import main
from perfd.cli.terminal_table import TerminalTable

TRACES = Path(__file__).parents[2] / "docs" / "examples" / "slow-rank"
WIDTHS = (40, 60, 80, 120, 200)
COLUMNS = ("kernel", "class", "tensor cores", "count", "total", "median", "deviation", "share")
ROWS = [
    (
        f"ncclDevKernel_AllReduce_Sum_f32_RING_LL_number_{at}",
        "communication",
        "yes",
        f"{at},000",
        "249.2 ms",
        "1.8 ms",
        "43.1 µs",
        f"{at}.4%",
    )
    for at in range(1, 4)
]


def shown(table: TerminalTable, width: int) -> list[str]:
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


def full_table() -> TerminalTable:
    table = TerminalTable("Kernels of rank 0")
    table.add_columns(COLUMNS, texts=2)
    for row in ROWS:
        table.add_row(*map(Text, row))
    return table


@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_and_no_heading_is_broken_at_any_width(width: int) -> None:
    lines = shown(full_table(), width)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    for heading in COLUMNS:
        assert set(heading.split()) <= set(words)
    for row in ROWS:
        assert {part for cell in row[2:] for part in cell.split()} <= set(words)


def test_an_empty_column_is_left_out_where_it_would_not_fit() -> None:
    table = TerminalTable("Ranks", keys=1)
    table.add_columns(("rank", "window", "compute", "lost"))
    table.add_row("0", "655.6 ms", "39.4%", "")
    assert shown(table, 60)[2].split() == ["rank", "window", "compute", "lost"]
    (heading,) = [line for line in shown(table, 24) if "rank" in line]
    assert heading.split() == ["rank", "window", "compute"]


def test_what_does_not_fit_follows_below_with_the_name_of_each_row() -> None:
    at_60, at_200 = shown(full_table(), 60), shown(full_table(), 200)
    assert [sum(line.split()[:1] == ["kernel"] for line in lines) for lines in (at_60, at_200)] == [2, 1]
    # A name that is longer than its column goes on in the next line.
    names = "".join(word for line in at_60 for word in line.split()[:1])
    assert [names.count(row[0]) for row in ROWS] == [2, 2, 2]
    assert at_60[0] == at_200[0] == "Kernels of rank 0"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("verb", "headings"),
    [
        (["analyze"], {"window", "compute", "exposed", "launch", "sync", "waiting", "tensor", "cores"}),
        (["trace", "table", "all"], {"deviation", "operation", "median", "priority", "others", "gain"}),
    ],
)
def test_tables_of_a_trace_fit_the_terminal(
    verb: list[str],
    headings: set[str],
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert main([*verb, str(TRACES)]) == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= width
    assert headings <= set(" ".join(lines).split())
