"""Two runs side by side: the page, the interface and `perfd compare` show one comparison."""

from __future__ import annotations

import gzip
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

from perfd.aggregator.group.group_pages import GroupPages
from perfd.aggregator.group.peers import Peers
from perfd.aggregator.group.sharing import GroupView
from perfd.aggregator.web_api import PAGE_FILE, SavedRun, routes, save_run
from perfd.cli import main
from perfd.formatting import duration, percent, signed_percent
from perfd.net import HttpServer
from perfd.recording.recording_format import find_recording
from perfd.session.replay_session import ReplayOptions, replay
from perfd.trace.diagnosis import TraceSettings, analyse, diagnose, trace_json
from perfd.trace.readers.trace_files import read_traces
from perfd.web.live_updates import Live
from tests.support.chromium import Tab
from tests.support.page_server import capture_entry, rank_entry
from tests.support.traces import Op, kineto, write_json

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
    with found.value as answer:
        return answer.code, json.load(answer)["error"]


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


@pytest.fixture(scope="module")
def captured(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folders of two runs, each with a capture that was analyzed."""
    root = tmp_path_factory.mktemp("captured")
    kernels = {"dp4": (("gemm", 100), ("gone_kernel", 50)), "dp4_slow2": (("gemm", 200), ("new_kernel", 30))}
    folders = []
    for number, (name, run) in enumerate(runs.items(), 1):
        folder, files = root / name, root / name / f"c{number}"
        files.mkdir(parents=True)
        begins = (10, 300)
        operations = [Op(kernel, at, at + us) for (kernel, us), at in zip(kernels[name], begins, strict=True)]
        trace = write_json(files / "rank0.trace.json", kineto(operations, steps={1: (0, 500)}))
        analysis = analyse(read_traces([trace], "nsys"), TraceSettings())
        write_json(files / "perfd.trace.json", trace_json.to_json(analysis, diagnose(analysis)))
        page = json.loads(gzip.decompress((run / PAGE_FILE).read_bytes()))
        # Of these the older one has no analysis any more, and the newest none yet.
        page["captures"] = [
            capture_entry(
                one, job=name, state="done", ranks=[rank_entry(0, "done", files=[{"path": str(path)}])]
            )
            for one, path in (
                ("c0", root / "c0" / "rank0.trace.json"),
                (f"c{number}", trace),
                ("c9", root / "c9" / "rank0.trace.json"),
            )
        ]
        (folder / PAGE_FILE).write_bytes(gzip.compress(json.dumps(page).encode()))
        write_json(
            folder / "summary.json", {"schema": "perfd.summary/2", "jobs": [page["jobs"][name]["summary"]]}
        )
        folders.append(folder)
    return folders


def test_kernels_of_two_jobs_are_compared_if_both_have_an_analyzed_capture(
    captured: list[Path], runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *map(str, captured), "--json"]) == 1

    said = json.loads(capsys.readouterr().out)
    assert (said["a_capture"], said["b_capture"]) == ("c1", "c2")
    kinds = {one["name"]: (one["kind"], one["a_s"], one["b_s"]) for one in said["kernels"]}
    assert kinds == {
        "gemm": ("longer", pytest.approx(1e-4), pytest.approx(2e-4)),
        "gone_kernel": ("gone", pytest.approx(5e-5), 0.0),
        "new_kernel": ("new", 0.0, pytest.approx(3e-5)),
    }
    assert main(["compare", *map(str, captured)]) == 1
    assert "Kernels that changed most, per step (capture c1 of A, c2 of B)" in " ".join(
        capsys.readouterr().out.split()
    )

    # With the other numbers as they are without captures.
    server = serving(SavedRun(captured[0], runs["dp4_slow2"]))
    try:
        half = get(f"http://{server.address}/api/v1/compare?{PAIR}")
    finally:
        server.close()
    assert (half["a_capture"], half["b_capture"], half["kernels"]) == ("c1", "", [])
    assert half["changes"] == said["changes"]


def test_a_group_compares_kernels_of_jobs_of_two_partitions(captured: list[Path]) -> None:
    live = Live()
    live.close()
    partitions = [routes(SavedRun(folder), live) for folder in captured]
    view = GroupView(connected=True, members={}, holders={})
    group = GroupPages(lambda: view, lambda number: partitions[number], Peers(1.0, None), 2, live)
    server, alone = HttpServer("127.0.0.1:0", group.routes()), serving(SavedRun(*captured))
    try:
        found = get(f"http://{server.address}/api/v1/compare?{PAIR}")
        assert len(found["kernels"]) == 3
        assert found == get(f"http://{alone.address}/api/v1/compare?{PAIR}")
    finally:
        server.close()
        alone.close()
        group.close()


@pytest.mark.system
def test_the_page_shows_the_kernels_that_the_interface_returns(captured: list[Path], tab: Tab) -> None:
    server = serving(SavedRun(*captured))
    try:
        url = f"http://{server.address}"
        found = get(f"{url}/api/v1/compare?{PAIR}")
        tab.open(f"{url}/compare?{PAIR}", "document.getElementById('kernels')")
        rows = tab.run("[...document.querySelectorAll('#kernels tbody tr')].map((row) => row.innerText)")
        assert len(rows) == len(found["kernels"]) == 3
        for row, one in zip(rows, found["kernels"], strict=True):
            assert [cell.strip() for cell in row.split("\t")] == [
                one["name"],
                one["kind"],
                *(duration(seconds) for seconds in (one["a_s"], one["b_s"], one["b_s"] - one["a_s"])),
            ]
        assert "capture c1 of A and capture c2 of B" in tab.text("[data-section=kernels]")
        tab.open(f"{url}/reports/compare?{PAIR}", "document.querySelector('h1')")
        assert "capture c1 of A, c2 of B; means over ranks" in tab.text("body")
    finally:
        server.close()


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
    assert "A and B have none" in tab.text("#kernels")
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
