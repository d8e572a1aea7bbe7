"""Commands that read traces show on a terminal what they read, when that takes long."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perfd.cli import main
from perfd.cli.status_line import SHOWN_AFTER_S, StatusLine
from perfd.cli.traces.trace_reading import LARGE_BYTES, PACKED_RATIO, in_words, is_shown
from perfd.trace.readers.trace_files import ReadProgress
from tests.support.traces import COMPUTE, Op, kineto, write_json

_CLEARED = b"\r\x1b[K"


@pytest.fixture
def traces(tmp_path: Path) -> list[Path]:
    return [_trace(tmp_path / f"rank-{rank}.json", rank) for rank in range(2)]


def _trace(path: Path, rank: int) -> Path:
    return write_json(path, kineto([Op(COMPUTE, 0, 60, launched=-5)], rank=rank, steps={1: (0, 100)}))


def _enlarge(path: Path) -> None:
    """Make it a trace that is large: of spaces, which cost little to read."""
    with path.open("ab") as file:
        file.write(b" " * (LARGE_BYTES - path.stat().st_size))


def _on_terminal(*arguments: str | Path, code: int = 0) -> tuple[bytes, bytes]:
    """Standard output, and what a terminal on standard error got."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "perfd", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=slave, check=False)
    seen = _seen(master, slave)
    assert done.returncode == code, seen
    return done.stdout, seen


def _seen(master: int, slave: int) -> bytes:
    """All that was written to the terminal, which is closed."""
    os.write(slave, b"END")
    seen = b""
    while not seen.endswith(b"END"):
        seen += os.read(master, 4096)
    os.close(slave)
    os.close(master)
    return seen.removesuffix(b"END")


@pytest.mark.slow
@pytest.mark.parametrize(
    "verb",
    [["analyze", "--json"], ["trace", "table", "kernels", "--json"], ["report", "--json"]],
    ids=["analyze", "table", "report"],
)
def test_a_large_trace_is_named_while_it_is_read_and_gone_at_the_end(
    traces: list[Path], verb: list[str]
) -> None:
    _enlarge(traces[1])
    folder = traces[0].parent

    output, screen = _on_terminal(*verb, folder)

    json.loads(output)
    assert b"Reading rank-1.json, 50.0 MB (2 of 2)" in screen
    assert screen.endswith(_CLEARED)


@pytest.mark.slow
def test_a_pipe_on_standard_error_gets_nothing(traces: list[Path]) -> None:
    _enlarge(traces[1])
    command = [sys.executable, "-m", "perfd", "analyze", str(traces[0].parent)]

    assert subprocess.run(command, capture_output=True, check=True).stderr == b""


def test_an_error_stands_on_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(b'{"traceEvents": [')
    _enlarge(path)

    _, screen = _on_terminal("analyze", path, code=2)

    assert screen.startswith(b"\rReading cut.json, 50.0 MB")
    assert b"\r\x1b[Kperfd analyze: " in screen


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_when_reading_takes_long_each_file_is_shown(
    traces: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("perfd.cli.traces.trace_reading.SHOWN_AFTER_S", 0.0)

    assert main(["analyze", *map(str, traces)]) == 0

    assert re.findall(r"\rReading (\S+), [^\r]*? \((\d of \d)\)\x1b\[K", screen.getvalue()) == [
        ("rank-0.json", "1 of 2"),
        ("rank-1.json", "2 of 2"),
    ]
    assert screen.getvalue().endswith("\r\x1b[K")


def test_a_small_trace_after_a_large_one_replaces_its_name(
    traces: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _enlarge(traces[0])
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("perfd.cli.traces.trace_reading.SHOWN_AFTER_S", 3600.0)

    assert main(["analyze", *map(str, traces)]) == 0

    assert re.findall(r"\((\d) of 2\)", screen.getvalue()) == ["1", "2"]


def test_small_traces_show_nothing(traces: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("perfd.cli.traces.trace_reading.SHOWN_AFTER_S", 3600.0)

    assert main(["analyze", *map(str, traces)]) == 0

    assert screen.getvalue() == ""


def test_compare_shows_which_run_it_analyzes(traces: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("perfd.cli.traces.analysis_process.SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr("perfd.cli.status_line._WIDTH", 1000)

    assert main(["compare", *map(str, traces)]) == 0

    shown = [f"\rAnalyzing {trace}\x1b[K\r\x1b[K" for trace in traces]
    assert screen.getvalue() == "".join(shown)


@pytest.mark.parametrize(
    ("name", "size_bytes", "elapsed_s", "shown"),
    [
        ("a.json", LARGE_BYTES, 0.0, True),
        ("a.json", LARGE_BYTES - 1, 0.0, False),
        ("a.json.gz", LARGE_BYTES // PACKED_RATIO, 0.0, True),
        ("a.json.gz", LARGE_BYTES // PACKED_RATIO - 1, 0.0, False),
        ("a.json", 1, SHOWN_AFTER_S, True),
        ("a.json", 1, SHOWN_AFTER_S - 0.001, False),
    ],
)
def test_what_takes_long_is_shown(name: str, size_bytes: int, elapsed_s: float, shown: bool) -> None:
    assert is_shown(ReadProgress(Path(name), 1, 1, size_bytes), elapsed_s) is shown


def test_an_export_is_shown_from_its_start() -> None:
    progress = ReadProgress(Path("runs/a.nsys-rep"), 1, 1, 1_000_000, exporting=True)

    assert is_shown(progress, 0.0)
    assert in_words(progress) == "Exporting a.nsys-rep, 1.0 MB"


def test_a_line_fits_into_its_terminal_and_changes_nothing_else_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w", closefd=False) as error:
        monkeypatch.setattr("sys.stderr", error)
        with StatusLine() as line:
            line.show("\x1b[2J" + "x" * 100)
    seen = _seen(master, slave)

    assert seen == b"\r\\x1b[2J" + b"x" * 72 + b"\x1b[K" + _CLEARED
