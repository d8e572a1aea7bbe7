"""`perfd replay --hold` serves what was played until it is told to end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from typing import IO

import pytest

COMMAND = [sys.executable, "-m", "perfd", "replay", "pp4_few", "--speed", "max", "--hold"]


def address_in(stream: IO[str]) -> str:
    """The address that is said, among whatever else is."""
    for line in stream:
        if line.startswith("Serving at "):
            return line.split()[2]
    raise AssertionError("it ended without a word")


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        text: str = answer.read().decode()
    return text


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_page_metrics_and_numbers_stay_until_a_signal_and_then_all_is_well(number: signal.Signals) -> None:
    with subprocess.Popen(
        [*COMMAND, "--json", "--http", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            url = address_in(process.stderr)
            summary, metrics, page = (fetched(url + path) for path in ("api/v1/jobs/pp4_few", "metrics", ""))
        finally:
            process.send_signal(number)
            printed, said = process.communicate()

    assert process.returncode == 0
    assert (
        json.loads(printed)["jobs"][0]["efficiency"]["mfu_ratio"]
        == json.loads(summary)["jobs"][0]["efficiency"]["mfu_ratio"]
    )
    assert 'job="pp4_few"' in metrics
    assert "<title>perfd</title>" in page
    assert "Traceback" not in said


def test_without_hold_it_ends_by_itself() -> None:
    done = subprocess.run(
        [word for word in COMMAND if word != "--hold"], capture_output=True, text=True, check=True
    )

    assert "Played" in done.stdout
    assert "Serving" not in done.stderr
