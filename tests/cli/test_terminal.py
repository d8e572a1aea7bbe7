from __future__ import annotations

import pytest
from rich.table import Table
from rich.text import Text

from perfd.cli.terminal import Terminal


def table() -> Table:
    made = Table()
    made.add_column("name")
    made.add_row(Text("[bold]x[/bold] 12 " + "word " * 60, style="red"))
    return made


@pytest.mark.parametrize("columns", ["40", "300"])
def test_outside_a_terminal_a_table_is_plain_and_of_one_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    Terminal().print(table())
    shown = capsys.readouterr().out
    assert {len(line) for line in shown.splitlines()} == {160}
    assert "[bold]x[/bold] 12 word" in shown
    assert "\x1b" not in shown


def test_a_terminal_has_its_own_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert Terminal().width == 40
