"""Patterns of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from perfd_collectors.training_log.collector import TrainingLogOptions, create
from perfd_collectors.training_log.formats.user_patterns import compiled_pattern
from perfd_collectors.training_log.log_document import LogDocument

from perfd.cli import main
from perfd.clock import VirtualClock
from perfd.collector import Settings
from perfd.errors import ConfigError
from perfd.model import TrainingStep
from tests.training_log.logs import iteration

PATTERN = r"^it (?P<step>\d{1,9}) took (?P<step_time_ms>[\d.]{1,12}) ms, (?P<tokens_per_s>[\d,]{1,15}) t/s"
LINES = "it 5 took 120.0 ms, 1,200 t/s\nnothing\nit 6 took 130.0 ms, 1,100 t/s\n"


def test_a_pattern_finds_the_steps(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(LINES)
    document = LogDocument(patterns=[PATTERN])
    with log.open("rb") as data:
        document.read(data)

    assert [(s.step, s.step_time_s, s.tokens_per_s) for s in document.steps] == [
        (5, 0.12, 1200.0),
        (6, 0.13, 1100.0),
    ]


def test_the_collector_takes_patterns_from_its_options(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(iteration(10) + LINES)
    options = TrainingLogOptions(paths=(str(log),), patterns=(PATTERN,))
    collector = create(options, Settings(node="n", job="train", clock=VirtualClock(10**18)))

    steps = [record for record in collector.collect() if isinstance(record, TrainingStep)]
    collector.close()

    # What the user asks for counts before a trainer's own lines.
    assert [step.step for step in steps][-2:] == [5, 6]


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"step (\d+)", "needs a group"),
        (r"step (?P<step>\d{1,9}", "not a regular expression"),
        (r"step (?P<step>\d{1,9}) (?P<speed>\d{1,9})", "'speed'"),
        (r"(?:a+)+b (?P<step>\d{1,9})", "minutes"),
        (r"\s*x(?P<step>\d{1,9})", "minutes"),
        (r"(.*)(.*)(.*)=(?P<step>\d+)", "minutes"),
        ("(?P<step>a)" + "b" * 500, "characters"),
    ],
)
def test_a_pattern_that_is_wrong_or_slow_is_refused_at_load(pattern: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        compiled_pattern(pattern)


def test_perfd_parse_tries_a_pattern(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text(LINES)

    assert main(["parse", str(log), "--pattern", PATTERN]) == 0

    assert "2 progress lines" in capsys.readouterr().out
