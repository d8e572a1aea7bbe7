"""`perfd open` shows the page of a run that is over, with the numbers it had at its end."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfd.aggregator.web_api import PAGE_FILE, SavedRun, save_run
from perfd.errors import PerfdError
from perfd.recording.recording_format import find_recording
from perfd.session.replay_session import ReplayOptions, replay
from tests.support.chromium import Tab

PATHS = (
    "fleet",
    "jobs",
    "jobs?job=pp4_few",
    "jobs/pp4_few",
    "jobs/pp4_few/steps",
    "jobs/pp4_few/series?points=40",
    "alerts?job=pp4_few",
    "captures?job=pp4_few",
    "servers",
    "agents",
    "nodes?all=1",
)


def fetched(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A saved run, and what its aggregator served when it was saved."""
    folder = tmp_path_factory.mktemp("run")
    served: dict[str, Any] = {}

    def save(_: object, aggregator: Any) -> None:
        save_run(aggregator, folder / PAGE_FILE, 1_795_000_000.5)
        served.update({path: fetched(f"http://{aggregator.http_address}/api/v1/{path}") for path in PATHS})

    replay(ReplayOptions(recording=find_recording("pp4_few"), http="127.0.0.1:0"), on_end=save)
    return folder, served


@pytest.fixture
def opened(run: tuple[Path, dict[str, Any]]) -> Iterator[str]:
    command = [sys.executable, "-m", "perfd", "open", str(run[0]), "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[2].rstrip("/")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
    assert process.returncode == 0


def test_the_api_answers_as_it_did_at_the_end(opened: str, run: tuple[Path, dict[str, Any]]) -> None:
    _, served = run
    assert served["jobs/pp4_few/steps"]["steps"]
    for path in PATHS:
        if "series" not in path:
            assert fetched(f"{opened}/api/v1/{path}") == served[path], path


def test_a_chart_has_at_most_the_points_asked_for_and_the_newest_one(
    opened: str, run: tuple[Path, dict[str, Any]]
) -> None:
    every = fetched(f"{opened}/api/v1/jobs/pp4_few/series?points=2000")
    few = fetched(f"{opened}/api/v1/jobs/pp4_few/series?points=5")

    assert 0 < len(few["step"]) <= 5 < len(every["step"])
    assert few["step"][-1] == every["step"][-1] == run[1]["jobs/pp4_few/series?points=40"]["step"][-1]
    assert {len(values) for name, values in few.items() if isinstance(values, list)} == {len(few["step"])}


def test_nothing_that_needs_a_live_job_is_there(opened: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="503") as metrics:
        urllib.request.urlopen(f"{opened}/metrics", timeout=20)
    assert b"This run has ended" in metrics.value.read()
    start = urllib.request.Request(f"{opened}/api/v1/captures", data=b'{"job": "pp4_few"}')
    start.add_header("Content-Type", "application/json")
    with pytest.raises(urllib.error.HTTPError) as capture:
        urllib.request.urlopen(start, timeout=20)
    assert b"it has no processes to capture" in capture.value.read()


@pytest.mark.system
def test_the_page_says_when_it_was_saved_and_never_that_it_is_live(opened: str, tab: Tab) -> None:
    tab.open(f"{opened}/jobs/pp4_few")

    tab.wait("document.querySelector('#job')?.textContent === 'pp4_few'")
    assert tab.run("document.querySelector('#updated').textContent").startswith("Saved ")
    assert "Live" not in tab.run("document.body.textContent")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "damaged|not a saved page"),
        (b"no gzip", "damaged"),
        (gzip.compress(b'{"schema": "perfd.page/1"', mtime=0)[:-9], "damaged"),
        (gzip.compress(b"\xff\xfe", mtime=0), "not a saved page"),
        (gzip.compress(b'{"schema": "perfd.page/1"}', mtime=0), "not a saved page"),
        (gzip.compress(b"[1, 2]", mtime=0), "not a saved page"),
        (gzip.compress(b'{"fleet": {"a":' + b"[" * 100_000, mtime=0), "not a saved page"),
    ],
)
def test_a_file_that_is_no_page_is_refused_in_a_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / PAGE_FILE).write_bytes(content)

    with pytest.raises(PerfdError, match=said):
        SavedRun(tmp_path)


def test_a_pipe_in_place_of_a_page_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / PAGE_FILE)

    with pytest.raises(PerfdError, match="pipe"):
        SavedRun(tmp_path)


def test_a_page_of_another_version_is_refused(tmp_path: Path, run: tuple[Path, dict[str, Any]]) -> None:
    document = json.loads(gzip.decompress((run[0] / PAGE_FILE).read_bytes()))
    document["schema"] = "perfd.page/9"
    (tmp_path / PAGE_FILE).write_bytes(gzip.compress(json.dumps(document).encode()))

    with pytest.raises(PerfdError, match=r"schema 'perfd\.page/9'; this perfd reads perfd.page/1"):
        SavedRun(tmp_path)


def test_a_folder_without_a_page_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PerfdError, match=r"has no saved page .* `perfd report"):
        SavedRun(tmp_path)


def test_the_folder_of_all_runs_says_which_are_the_newest(
    tmp_path: Path, run: tuple[Path, dict[str, Any]]
) -> None:
    for age_s, name in enumerate(("newest", "second", "third", "oldest")):
        saved = tmp_path / name / PAGE_FILE
        saved.parent.mkdir()
        saved.write_bytes((run[0] / PAGE_FILE).read_bytes())
        os.utime(saved, (1e9 - age_s, 1e9 - age_s))

    with pytest.raises(PerfdError) as refused:
        SavedRun(tmp_path)
    names = ", ".join(str(tmp_path / name) for name in ("newest", "second", "third"))
    assert str(refused.value).endswith(f"The newest runs below it: {names}.")
