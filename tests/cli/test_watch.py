"""`perfd watch`: one line about a job, until it ends; and `perfd demo`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perfd.cli import main
from perfd.cli.commands import demo, replay
from perfd.cli.commands.watch import line_of, watch
from perfd.recording.recording_format import bundled_names
from tests.support.page_server import StandIn, fleet_row

SLOW = {
    "kind": "straggler",
    "gain_ratio": 0.088,
    "culprits": [{"kind": "rank", "id": 2}],
    "culprit_count": 1,
}
NOTHING = {"kind": "unknown", "gain_ratio": None, "culprits": [], "culprit_count": 0}


@pytest.fixture
def aggregator() -> Iterator[StandIn]:
    stand_in = StandIn()
    yield stand_in
    stand_in.close()


def listed(aggregator: StandIn, *jobs: dict[str, Any]) -> None:
    aggregator.answers["fleet"] = {**aggregator.answers["fleet"], "jobs": list(jobs)}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"bottleneck": SLOW, "firing_alerts": 1},
            (
                "llm, step 100 of 1000, 500.0 ms, 100,000 tokens/s, 40.0% MFU, 5.0% communication,"
                " straggler (rank 2, 8.8% of a step), 1 alert"
            ),
        ),
        (
            {
                "bottleneck": {**SLOW, "culprit_count": 7},
                "firing_alerts": 2,
                "train_steps": None,
                "tokens_per_s": None,
            },
            (
                "llm, step 100, 500.0 ms, 40.0% MFU, 5.0% communication,"
                " straggler (rank 2, 6 more, 8.8% of a step), 2 alerts"
            ),
        ),
        (
            {
                "bottleneck": NOTHING,
                **dict.fromkeys(("step", "step_time_s", "tokens_per_s", "mfu_ratio", "communication_ratio")),
                "silent_s": 31.0,
            },
            "llm, unknown, silent for 31.0 s",
        ),
        (
            {"bottleneck": NOTHING, "ended": True, "outcome": "out_of_memory", "silent_s": 300.0},
            (
                "llm, step 100 of 1000, 500.0 ms, 100,000 tokens/s, 40.0% MFU, 5.0% communication, unknown,"
                " ended: out of memory"
            ),
        ),
    ],
)
def test_a_line_says_what_is_known_and_leaves_out_the_rest(changes: dict[str, Any], line: str) -> None:
    assert line_of(fleet_row("llm", **changes)) == line


@pytest.mark.parametrize(
    ("outcome", "code"), [("completed", 0), ("unknown", 0), (None, 0), ("failed", 1), ("cancelled", 1)]
)
def test_it_ends_with_its_job_and_says_how_that_ended(
    capsys: pytest.CaptureFixture[str], outcome: str | None, code: int
) -> None:
    rows = iter([fleet_row("llm"), fleet_row("llm", step=101), fleet_row("llm", ended=True, outcome=outcome)])
    waits: list[float] = []

    assert watch(lambda: next(rows), waits.append, interval_s=7.0, once=False) == code

    assert len(capsys.readouterr().out.splitlines()) == 3
    assert waits == [7.0, 7.0]


def test_one_line_of_the_only_job(aggregator: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    listed(aggregator, fleet_row("llm"))
    assert main(["watch", "--once", "--aggregator", aggregator.url]) == 0
    assert capsys.readouterr().out.startswith("llm, step 100 of 1000")


@pytest.mark.parametrize(
    ("arguments", "jobs", "words"),
    [
        ([], [], "knows no job yet"),
        ([], ["llm", "vision"], "There are 2 jobs; name one of them: llm, vision."),
        (["lllm"], ["llm", "vision"], "No job is named lllm; did you mean llm?"),
        (["zebra"], ["llm", "vision"], "No job is named zebra; known: llm, vision."),
    ],
)
def test_a_job_that_is_not_there_is_a_sentence(
    aggregator: StandIn,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    jobs: list[str],
    words: str,
) -> None:
    listed(aggregator, *map(fleet_row, jobs))
    assert main(["watch", *arguments, "--aggregator", aggregator.url]) == 2
    assert words in capsys.readouterr().err


def test_the_demo_replays_a_recording_of_the_wheel_and_says_what_is_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played: list[Any] = []
    monkeypatch.setattr(replay, "run", lambda args: played.append(args) or 0)

    assert main(["demo", "--http", "127.0.0.1:0"]) == 0

    (args,) = played
    assert args.recording in bundled_names()
    assert (args.http, args.hold, args.speed) == ("127.0.0.1:0", False, 1.0)
    assert "perfd run -- YOUR COMMAND" in capsys.readouterr().out
    assert args.skip == demo.START_UP_S
