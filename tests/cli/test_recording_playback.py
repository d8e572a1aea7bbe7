"""Commands that play a recording say how far they are, on a terminal only."""

from __future__ import annotations

import io
import re

import pytest

from perfd.cli import main


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("screen", [Screen(), io.StringIO()], ids=["terminal", "file"])
def test_progress_is_shown_on_a_terminal_and_gone_at_the_end(
    screen: io.StringIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr", screen)

    assert main(["diagnose", "dp4_slow2"]) == 0

    assert "rank 2" in capsys.readouterr().out
    shown = [int(number) for number in re.findall(r"\rReading the recording: (\d+)%", screen.getvalue())]
    if screen.isatty():
        assert len(shown) > 1
        assert shown == sorted(shown)
        assert shown[-1] == 100
        assert screen.getvalue().endswith("\r\x1b[K")
    else:
        assert screen.getvalue() == ""
