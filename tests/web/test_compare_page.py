"""Two runs side by side: the page, the interface and `perfd compare` show one comparison."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from perfd.aggregator.web_api import PAGE_FILE, SavedRun, routes, save_run
from perfd.cli import main
from perfd.formatting import duration, percent, signed_percent
from perfd.net import HttpServer
from perfd.recording.recording_format import find_recording
from perfd.session.replay_session import ReplayOptions, replay
from perfd.web.live_updates import Live
from tests.support.chromium import Tab

PAIR = "a=dp4&b=dp4_slow2"


def saved(folder: Path, name: str) -> Path:
    folder.mkdir()

    def save(_: object, aggregator: Any) -> None:
        save_run(aggregator, folder / PAGE_FILE, 1_795_000_000.5)

    replay(ReplayOptions(recording=find_recording(name), http="127.0.0.1:0"), on_end=save)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    return {name: saved(root / f"{name}-20261123", name) for name in ("dp4", "dp4_slow2")}


def serving(source: SavedRun) -> HttpServer:
    live = Live()
    live.close()
    return HttpServer("127.0.0.1:0", routes(source, live, saved_unix_s=source.saved_unix_s))


@pytest.fixture(scope="module")
def url(runs: dict[str, Path]) -> Iterator[str]:
    server = serving(SavedRun(*runs.values()))
    yield f"http://{server.address}"
    server.close()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return json.load(answer)


def refused(url: str) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as found:
        urllib.request.urlopen(url, timeout=20)
    return found.value.code, json.load(found.value)["error"]


def test_the_interface_compares_as_the_command_does(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "dp4", "dp4_slow2", "--json"]) == 1

    assert get(f"{url}/api/v1/compare?{PAIR}") == json.loads(capsys.readouterr().out)


def test_a_comparison_that_cannot_be_made_is_a_sentence(url: str) -> None:
    assert refused(f"{url}/api/v1/compare?a=dp4") == (400, "Name two jobs: ?a=JOB&b=JOB.")
    assert refused(f"{url}/api/v1/compare?a=dp4&b=none")[0] == 404
    for bound in ("x", "-1", "1", "nan"):
        assert refused(f"{url}/api/v1/compare?{PAIR}&max_regression={bound}")[0] == 400


def test_two_runs_of_one_name_have_the_names_of_their_folders(runs: dict[str, Path], tmp_path: Path) -> None:
    again = tmp_path / "later"
    again.mkdir()
    (again / PAGE_FILE).write_bytes((runs["dp4"] / PAGE_FILE).read_bytes())

    both = SavedRun(runs["dp4"], again)

    assert both.jobs() == ["dp4-20261123", "later"]
    assert [row["name"] for row in both.fleet()["jobs"]] == ["dp4-20261123", "later"]
    assert both.overview("later")[0]["name"] == "later"
    assert both.stored_summary("later")["name"] == "later"  # type: ignore[index]
    assert {alert["job"] for alert in both.alerts()} <= {"dp4-20261123", "later"}


@pytest.mark.system
def test_the_page_shows_what_the_interface_returns(url: str, tab: Tab) -> None:
    found = get(f"{url}/api/v1/compare?{PAIR}")
    tab.open(f"{url}/compare?{PAIR}", "document.getElementById('changes')")

    assert found["sentence"] in tab.text("#headline")
    assert "Steps of B take 13.8% longer than those of A" in tab.text("#headline")
    show = {"s": duration, "ratio": percent}
    for change in found["changes"]:
        row = tab.text(f"#changes [data-name='{change['name']}']")
        assert change["a"] is None or change["verdict"] in row
        if change["a"] is not None and change["unit"] in show:
            assert show[change["unit"]](change["a"]) in row
            assert show[change["unit"]](change["b"]) in row
            assert signed_percent(change["change_ratio"]) in row
    for name, letter in (("dp4", "a"), ("dp4_slow2", "b")):
        (job,) = get(f"{url}/api/v1/jobs?job={name}")["jobs"]
        assert duration(job["step_time_s"]["median"]) in tab.text(f"#breakdown-{letter}")
    series = [get(f"{url}/api/v1/jobs/{name}/series") for name in ("dp4", "dp4_slow2")]
    newest = ", ".join(f"{'AB'[i]} {percent(one['mfu_ratio'][-1])}" for i, one in enumerate(series))
    assert tab.text("#mfu-chart output") == f"step {series[0]['step'][-1]}: {newest}"


@pytest.mark.system
def test_other_models_are_compared_only_when_asked(tab: Tab, runs: dict[str, Path]) -> None:
    class Changed(SavedRun):
        def stored_summary(self, job: str) -> Any:
            found = super().stored_summary(job)
            return found if job == "dp4" else {**found, "framework": "another"}  # type: ignore[dict-item]

    server = serving(Changed(*runs.values()))
    tab.open(f"http://{server.address}/compare?{PAIR}", "document.getElementById('refused')")

    assert "framework megatron-lm and another" in tab.text("#refused")
    tab.run("document.getElementById('all-the-same').click()")
    tab.wait("document.getElementById('changes')")
    assert "another" in tab.text("#differences")
    server.close()


@pytest.mark.system
def test_the_page_works_below_a_path_of_a_proxy(url: str, tab: Tab) -> None:
    address = urllib.parse.urlsplit(url).netloc
    asked: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if not self.path.startswith("/tools/perfd/"):
                self.send_error(404)
                return
            connection = http.client.HTTPConnection(address, timeout=20)
            connection.request("GET", self.path.removeprefix("/tools/perfd"))
            answer = connection.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            for name in ("Content-Type", "Content-Security-Policy"):
                if value := answer.getheader(name):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            connection.close()

        def log_message(self, *_: object) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        base = f"http://127.0.0.1:{proxy.server_port}/tools/perfd"
        for path, ready in (
            ("/", "#jobs"),
            ("/jobs/dp4", "#mfu"),
            ("/jobs/dp4/captures", "#empty"),
            ("/agents", "#agents"),
            (f"/compare?{PAIR}", "#changes"),
        ):
            tab.open(f"{base}{path}", f"document.querySelector('{ready}')")
            links = tab.run("[...document.querySelectorAll('a')].map((a) => a.getAttribute('href'))")
            outside = [
                link for link in links if link.startswith("/") and not link.startswith("/tools/perfd/")
            ]
            assert outside == []
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
    assert [path for path in asked if not path.startswith("/tools/perfd/") and "favicon" not in path] == []
