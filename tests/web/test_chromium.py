"""In a real browser, the page shows what the interface tells."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from perfd.http import HttpServer, Response
from perfd.recording.format import find_recording
from perfd.session.replay import Progress, ReplayOptions, replay
from perfd.web.routes import page_routes

pytestmark = pytest.mark.system
NO_BREAK = "\N{NO-BREAK SPACE}"


class Page(HTMLParser):
    """The text of each element that has an id, in a document that a browser wrote."""

    VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})

    def __init__(self, dom: str) -> None:
        super().__init__()
        self.dom = dom
        self.text: dict[str, str] = {}
        self.tags: set[str] = set()
        self._open: list[str | None] = []
        self.feed(dom)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in self.VOID:
            self._open.append(dict(attrs).get("id"))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        for name in filter(None, self._open):
            self.text[name] = self.text.get(name, "") + data.replace(NO_BREAK, " ")


@contextmanager
def played(recording: str) -> Iterator[str]:
    """The address of the aggregator of a replay that has come to its end."""
    ready, seen, address = threading.Event(), threading.Event(), []

    def hold(progress: Progress) -> None:
        if progress.played_s >= progress.total_s and not ready.is_set():
            progress.aggregator.tick()
            address.append(progress.aggregator.http_address)
            ready.set()
            seen.wait()

    options = ReplayOptions(recording=find_recording(recording), http="127.0.0.1:0")
    thread = threading.Thread(target=replay, args=(options,), kwargs={"on_progress": hold})
    thread.start()
    try:
        assert ready.wait(50)
        yield f"http://{address[0]}"
    finally:
        seen.set()
        thread.join()


def browse(url: str, tmp_path: Path, *flags: str) -> Page:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert chromium, "install the package chromium"
    done = subprocess.run(
        [
            chromium,
            *[
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-sync",
            ],
            *["--disable-background-networking", "--disable-component-update", "--hide-scrollbars"],
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=1500",
            "--enable-logging=stderr",
            "--dump-dom",
            *flags,
            url,
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    assert "Content Security Policy" not in done.stderr
    assert "Uncaught" not in done.stderr
    return Page(done.stdout)


def api(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url}/api/v1/{path}", timeout=10) as answer:
        return json.load(answer)


def percent(ratio: float) -> str:
    return f"{ratio * 100:.1f} %"


@pytest.mark.parametrize("recording", ["dp4_slow2", "pp4_few"])
def test_a_job_shows_what_the_interface_tells(recording: str, tmp_path: Path) -> None:
    with played(recording) as url:
        page = browse(f"{url}/jobs/{recording}", tmp_path)
        (job,) = api(url, "jobs")["jobs"]
        alerts = api(url, "alerts")["alerts"]

    finding = job["bottleneck"]
    assert all(f"{who['kind']} {who['id']}" in page.text["headline"] for who in finding["culprits"])
    assert percent(finding["lost_ratio"]) in page.text["headline"]
    assert page.text["evidence"] == "".join(finding["evidence"])
    assert page.text["recommendation"] == f"What to do: {finding['recommendation']}"
    assert page.text["mfu"] == percent(job["mfu_ratio"])
    assert page.text["step-time"] == f"{job['step_time_s']['median'] * 1000:.0f} ms"
    assert page.text["tokens"] == f"{job['tokens_per_s']:,.0f}"
    assert page.text["communication"] == percent(job["communication"]["share_ratio"])
    for part in ("forward_ratio", "backward_ratio"):
        assert percent(job["breakdown"][part]) in page.text["breakdown"]
    for gpu in job["gpus"]:
        assert f"rank {gpu['rank']}" in page.text["ranks"]
        assert percent(gpu["tensor_active_ratio"]) in page.text["ranks"]
    for stage in job["pipeline"]["stages"]:
        assert percent(stage["stall_ratio"]) in page.text["stages"]
    assert all(alert["name"] in page.text["alerts"] for alert in alerts)
    assert page.dom.count('class="mark alert"') == 2 * len(alerts)


def test_the_fleet_lists_the_job_and_what_limits_it(tmp_path: Path) -> None:
    with played("dp4_slow2") as url:
        page = browse(f"{url}/", tmp_path)

    assert page.text["job-dp4_slow2"] == "dp4_slow2"
    assert "straggler: rank 2" in page.text["jobs"]


def test_captures_show_how_each_rank_ended(tmp_path: Path) -> None:
    with played("pp4_few") as url:
        page = browse(f"{url}/jobs/pp4_few/captures", tmp_path)
        captures = api(url, "captures")["captures"]

    assert captures
    for capture in captures:
        assert capture["state"] in page.text[f"capture-{capture['id']}"]
        assert capture["reason"] in page.text[f"capture-{capture['id']}"]


def stand_in(jobs: Response) -> HttpServer:
    """An aggregator that gives one answer for its jobs, and has nothing else."""

    def lists(*names: str) -> Response:
        return Response(body=json.dumps({key: [] for key in names}).encode())

    return HttpServer(
        "127.0.0.1:0",
        {
            **page_routes(lambda _: True),
            "/api/v1/jobs": lambda _: jobs,
            "/api/v1/jobs/": lambda _: Response(status=404, body=b'{"error": "There is no such job."}'),
            "/api/v1/alerts": lambda _: lists("alerts"),
            "/api/v1/captures": lambda _: lists("captures"),
        },
    )


@pytest.mark.parametrize(
    ("answer", "path", "said"),
    [
        (Response(body=b'{"jobs": []}'), "/", "No job yet"),
        (Response(body=b'{"jobs": []}'), "/jobs/llama", "There is no such job."),
        (Response(status=503, body=b'{"error": "History is away."}'), "/", "History is away. Trying again"),
        (Response(body=b"{"), "/", "not JSON. Trying again"),
    ],
)
def test_what_is_missing_or_wrong_is_said(answer: Response, path: str, said: str, tmp_path: Path) -> None:
    server = stand_in(answer)
    try:
        page = browse(f"http://{server.address}{path}", tmp_path)
    finally:
        server.close()

    assert said in re.sub(r"<[^>]*>", "", page.dom)


def test_a_silent_job_is_stale_and_its_words_are_only_text(tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    finding = {"kind": "straggler", "confidence": 0.9, "culprits": [], "evidence": ["<b>bold</b>"]}
    job = {"name": name, "ended": False, "silent_s": 45.0, "bottleneck": finding}
    server = stand_in(Response(body=json.dumps({"jobs": [job]}).encode()))
    try:
        page = browse(f"http://{server.address}/jobs/{quote(name, safe='')}", tmp_path)
    finally:
        server.close()

    assert page.text["job"] == name
    assert page.text["evidence"] == "<b>bold</b>"
    assert not {"img", "b"} & page.tags
    assert "No agent has spoken of this job for 45.0 s" in page.text["stale"]


def test_an_aggregator_that_is_gone_is_said(tmp_path: Path) -> None:
    # Two lengths are no answer to a browser: the request fails as if nobody were there.
    broken = Response(body=b"{}", headers={"Content-Length": "9"})
    server = HttpServer("127.0.0.1:0", {**page_routes(lambda _: True), "/api/v1/": lambda _: broken})
    try:
        page = browse(f"http://{server.address}/", tmp_path)
    finally:
        server.close()

    assert "The aggregator does not answer. Trying again every 2 s." in page.dom
    assert 'data-state="disconnected"' in page.dom
