"""From a capture that is over to its report, in a real browser."""

from __future__ import annotations

import gzip
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfd.aggregator.aggregator import Aggregator
from perfd.capture.capture_routes import StartBody
from perfd.cli import main
from perfd.config import AggregatorConfig, CaptureProfile
from perfd.model import (
    CaptureFile,
    CaptureRequest,
    CaptureState,
    CaptureStatus,
    CaptureTool,
    RankPlacement,
    TrainingStep,
)
from tests.support import example_traces
from tests.support.chromium import Tab
from tests.support.fake_agent import FakeAgent
from tests.support.traces import COMPUTE, Op, kineto, write_json

pytestmark = pytest.mark.system


# In place of a Perfetto tab: it answers like Perfetto, and resolves to what it received.
PERFETTO = """new Promise((done) => {
  const pong = {data: "PONG", origin: "https://ui.perfetto.dev"};
  window.open = (address) => ({postMessage: (message, to) =>
    message === "PING" ? dispatchEvent(new MessageEvent("message", pong))
      : done([address, message.perfetto.title, message.perfetto.buffer.byteLength])});
  document.getElementById("open-perfetto").click();
})"""
TRACE = kineto([Op(COMPUTE, 0, 60)], steps={1: (0, 100)})


@pytest.fixture
def running() -> Iterator[Aggregator]:
    aggregator = Aggregator(
        AggregatorConfig(
            listen="127.0.0.1:0",
            http_listen="127.0.0.1:0",
            capture_profiles={"default": CaptureProfile(tool="kineto")},
        )
    )
    aggregator.start()
    yield aggregator
    aggregator.stop()


def captured(
    running: Aggregator,
    agent: FakeAgent,
    capture_id: str,
    folder: Path,
    *,
    name: str = "rank0.trace.json",
    document: object = TRACE,
) -> None:
    """Let an agent do what it is asked, which leaves a trace."""
    agent.hello(tools=(CaptureTool.KINETO,))
    agent.send(
        *(TrainingStep(job="llm", step=step, step_time_s=1.0) for step in range(1, 20)),
        RankPlacement(job="llm", rank=0, gpu=0),
    )
    running.tick()
    running.start_capture(StartBody(job="llm", id=capture_id))
    while not isinstance(request := agent.receive(), CaptureRequest):
        pass
    folder.mkdir()
    trace = write_json(folder / name, document)
    for state, files in ((CaptureState.ARMED, ()), (CaptureState.RUNNING, ()), (CaptureState.DONE, (trace,))):
        agent.say(
            CaptureStatus(
                capture_id=request.capture_id,
                state=state,
                time_unix_ns=1,
                ranks=(0,),
                files=[CaptureFile(path=str(file), size_bytes=file.stat().st_size) for file in files],
            )
        )
    while running.captures()[0]["state"] == "open":
        running.tick()


def test_the_report_of_a_capture_opens_from_its_page_once_it_was_made(tab: Tab, tmp_path: Path) -> None:
    config = AggregatorConfig(
        listen="127.0.0.1:0",
        http_listen="127.0.0.1:0",
        capture_profiles={"default": CaptureProfile(tool="kineto")},
        capture_reports=False,
    )
    running = Aggregator(config, manual=True)
    running.start()
    try:
        with FakeAgent(running.grpc_address) as agent:
            captured(running, agent, "c1", tmp_path / "c1")
            url = f"http://{running.http_address}"

            tab.open(f"{url}/jobs/llm/captures/c1", "document.querySelector('#files a')")
            assert "done" in tab.text("#capture")
            assert tab.text("#files a") == "How to read the traces"
            tab.run("document.querySelector('#files a').click()")
            tab.wait("location.pathname === '/reports/captures/c1' && document.querySelector('h1')")
            assert "No report here yet" in tab.text("h1")
            assert "perfd capture show c1 --analyze" in tab.text("body")

            assert main(["capture", "show", "c1", "--analyze", "--aggregator", url]) == 0
            tab.open(f"{url}/jobs/llm/captures/c1", "document.querySelector('#files a')")
            tab.run("document.querySelector('#files a').click()")
            tab.wait("location.pathname === '/reports/captures/c1' && document.querySelector('.headline')")
            assert tab.count("svg") > 0
    finally:
        running.stop()


def test_no_table_of_a_report_is_wider_than_its_page(tab: Tab, tmp_path: Path) -> None:
    example_traces.main(tmp_path / "traces")
    page = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "traces"), "--output", str(page)]) == 0
    tab.look(1280)
    tab.open(page.as_uri(), "document.querySelector('.scroll')")
    widths = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth)"
    assert tab.run(f"{widths}.map(one => one.innerText)") == []


def test_what_the_traces_say_is_on_the_page_by_itself(running: Aggregator, tab: Tab, tmp_path: Path) -> None:
    with FakeAgent(running.grpc_address) as agent:
        captured(running, agent, "c1", tmp_path / "c1")
        # Written at the lowest priority, which is slow on a busy machine.
        while not ((report := running.captures()[0]["report"]) and report["perfetto_path"]):
            running.tick()
        url = f"http://{running.http_address}"
        tab.open(f"{url}/jobs/llm/captures", "document.querySelector('#capture-c1 .headline')")
        assert "The host may limit this job." in tab.text("#capture-c1 .headline")
        tab.run("document.querySelector('#capture-c1 a').click()")
        tab.wait("location.pathname === '/jobs/llm/captures/c1' && document.querySelector('#open-perfetto')")
        assert "The host may limit this job." in tab.text("main .headline")
        assert tab.count("iframe#report") == 1
        assert tab.text("#files a") == "Open the report"
        with urllib.request.urlopen(f"{url}/api/v1/traces/c1/perfetto", timeout=20) as answer:
            exported = answer.read()
            assert "c1.perfetto-trace.gz" in answer.headers["Content-Disposition"]
        assert b"GPU stream" in gzip.decompress(exported)
        handed_over = tab.run(PERFETTO)
        assert handed_over == ["https://ui.perfetto.dev", "Capture c1 of llm", len(exported)]
        tab.run("document.querySelector('#files a').click()")
        tab.wait("location.pathname === '/reports/captures/c1' && document.querySelector('.headline')")
        assert tab.count("svg") > 0


def test_a_capture_whose_traces_cannot_be_read_has_no_link_to_a_report(
    running: Aggregator, tab: Tab, tmp_path: Path
) -> None:
    with FakeAgent(running.grpc_address) as agent:
        captured(running, agent, "c1", tmp_path / "c1", document={"nothing": "of Kineto's"})
        tab.open(
            f"http://{running.http_address}/jobs/llm/captures/c1",
            "document.querySelector('main .headline')",
        )
        assert "No report could be made" in tab.text("main .headline")
        assert tab.count("#files, iframe") == 0


def test_a_capture_that_left_stacks_and_no_trace_has_no_link_to_a_report(
    running: Aggregator, tab: Tab, tmp_path: Path
) -> None:
    with FakeAgent(running.grpc_address) as agent:
        captured(running, agent, "c1", tmp_path / "c1", name="stacks.json")
        tab.open(f"http://{running.http_address}/jobs/llm/captures/c1", "document.querySelector('#ranks')")
        assert "done" in tab.text("#capture")
        assert tab.count("#files, iframe") == 0
