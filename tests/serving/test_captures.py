"""Servers that profile themselves, as each version does: what is asked of them, and what comes back."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from perfd_collectors.serving import SGLANG
from serving.pages import counter, gauge

from perfd.agent.agent import Agent
from perfd.agent.collection.collector_task import CollectorTask
from perfd.aggregator.aggregator import Aggregator
from perfd.capture.node.capture_tool import CaptureOutcome, CapturePlan, CaptureTarget
from perfd.capture.server.server_client import ServerClient
from perfd.capture.server.server_tool import CaptureServer, ServerTool
from perfd.capture.server.server_traces import whole
from perfd.cli import main
from perfd.clock import SystemClock, VirtualClock
from perfd.collector import Settings
from perfd.config import (
    AgentCaptureConfig,
    AgentConfig,
    AggregatorConfig,
    CaptureProfile,
    CollectorConfig,
    RulesConfig,
    ServerConfig,
    UplinkConfig,
)
from perfd.errors import CaptureError, ConfigError
from perfd.model import Alert, AlertState, CaptureState, CaptureTool
from perfd.trace.model.serving_steps import step_name
from perfd.trace.readers.trace_files import read_traces
from tests.support.serving_stand_in import StandInServer

KINDS = {"sglang": CaptureTool.SGLANG, "vllm": CaptureTool.VLLM}


class WorkingClock(VirtualClock):
    """Time passes when somebody waits, and the servers work meanwhile."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self._work = work

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._work()


class Scene:
    """A node with servers, one tool for them, and its folders."""

    def __init__(self, directory: Path) -> None:
        self.traces = directory / "traces"
        self.captures = directory / "captures"
        self.traces.mkdir()
        self.captures.mkdir()
        self.servers: list[StandInServer] = []
        self.clock = WorkingClock(self.work)
        self.busy = True

    def serve(self, engine: str, version: str, **how: object) -> StandInServer:
        self.servers.append(StandInServer(engine, version, self.traces, **how))  # type: ignore[arg-type]
        return self.servers[-1]

    def work(self) -> None:
        for server in self.servers:
            server.steps(1 if self.busy else 0)

    def tool(self, *, authorization_file: Path | None = None) -> ServerTool:
        servers = [
            CaptureServer(
                client=ServerClient(server.address, authorization_file=authorization_file),
                trace_directory=self.traces,
            )
            for server in self.servers
        ]
        return ServerTool(KINDS[self.servers[0].engine], servers, clock=self.clock)

    def plan(self, **changes: object) -> CapturePlan:
        asked = {"capture_id": "c1", "max_duration_s": 30.0, "max_bytes": 10**9, "steps": 5, **changes}
        return CapturePlan(directory=self.captures, **asked)  # type: ignore[arg-type]

    def capture(
        self, tool: ServerTool | None = None, job: str = "llama", **changes: object
    ) -> CaptureOutcome:
        """A whole capture, as the executor carries it out."""
        tool, plan = tool or self.tool(), self.plan(**changes)
        targets = tool.ready(job, ()).targets
        begun = tool.start(targets, plan)
        self.clock.advance(begun.length_s or 0.0)
        (outcome,) = tool.stop(targets, plan)
        return outcome


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    for server in made.servers:
        server.close()


def names(outcome: CaptureOutcome) -> list[str]:
    return [file.name for file in outcome.files]


VERSIONS = [
    ("sglang", "0.4.3"),
    ("sglang", "0.4.6.post1"),
    ("sglang", "0.4.10.post2"),
    ("sglang", "0.5.9"),
    ("sglang", "0.5.23"),
    ("vllm", "0.8.5"),
    ("vllm", "0.15.0"),
    ("vllm", "0.33.0"),
]


@pytest.mark.parametrize(("engine", "version"), VERSIONS)
def test_every_version_leaves_whole_traces_of_its_ranks(scene: Scene, engine: str, version: str) -> None:
    scene.serve(engine, version, ranks=2)
    outcome = scene.capture()
    assert (outcome.state, outcome.reason, len(outcome.files)) == (CaptureState.DONE, "", 2)
    assert all(whole(file) and file.parent == scene.captures for file in outcome.files)
    assert not scene.servers[0].profiling
    # Nothing but what belongs to vLLM's own API process stays behind.
    assert all(".async_llm." in file.name for file in scene.traces.iterdir())


@pytest.mark.parametrize(
    ("version", "reported"),
    [("0.4.3", set()), ("0.4.6.post1", {"output_dir"}), ("0.5.23", {"output_dir", "num_steps"})],
)
def test_sglang_is_sent_what_its_version_understands(scene: Scene, version: str, reported: set[str]) -> None:
    server = scene.serve("sglang", version)
    scene.capture()
    path, said = server.asked[0]
    assert path == "/start_profile"
    assert {"output_dir", "num_steps"} & set(said) == reported
    if reported:
        assert (said["with_stack"], said["activities"]) == (False, ["CPU", "GPU"])


def test_only_a_vllm_that_counts_is_given_a_number_of_iterations(scene: Scene) -> None:
    server = scene.serve("vllm", "0.33.0")
    scene.capture()
    assert server.asked[0] == ("/start_profile", {"max_iterations": 5})


def test_a_server_without_work_is_stopped_when_the_time_is_up(scene: Scene) -> None:
    scene.busy = False
    server = scene.serve("sglang", "0.5.9")
    outcome = scene.capture(max_duration_s=7.0)
    assert outcome.state is CaptureState.DONE
    assert [path for path, _ in server.asked] == ["/start_profile", "/stop_profile"]
    assert scene.clock.monotonic_s() >= 7.0


def test_a_vllm_that_was_launched_without_a_profiler_is_refused(scene: Scene) -> None:
    scene.serve("vllm", "0.15.0", profiler=False)
    readiness = scene.tool().ready("llama", ())
    assert not readiness.targets
    assert "--profiler-config" in readiness.reason


def test_one_that_describes_nothing_fails_with_the_same_words(scene: Scene) -> None:
    scene.serve("vllm", "0.15.0", profiler=False, documented=False)
    with pytest.raises(CaptureError, match="--profiler-config"):
        scene.capture()


def test_the_profile_of_somebody_else_is_not_stopped(scene: Scene) -> None:
    server = scene.serve("sglang", "0.5.9")
    server.asked.clear()
    ServerClient(server.address).ask("POST", "/start_profile", 5.0)
    tool, plan = scene.tool(), scene.plan()
    targets = tool.ready("llama", ()).targets
    with pytest.raises(CaptureError, match="answers 500"):
        tool.start(targets, plan)
    tool.abort([target.handle for target in targets])
    assert server.profiling
    assert list(scene.traces.iterdir()) == []


def test_an_agent_that_is_new_stops_what_the_one_before_it_left(scene: Scene) -> None:
    server = scene.serve("sglang", "0.5.9")
    before = scene.tool()
    targets = before.ready("llama", ()).targets
    before.start(targets, scene.plan())
    scene.tool().abort([target.handle for target in targets])
    assert not server.profiling
    assert list(scene.traces.iterdir()) == []


def test_each_of_several_servers_is_captured_by_its_name(scene: Scene) -> None:
    first, second = scene.serve("sglang", "0.5.9"), scene.serve("sglang", "0.5.9")
    scene.capture(job=f"n1/{second.address}")
    assert (first.asked, second.asked != []) == ([], True)
    port = second.address.rpartition(":")[2]
    assert scene.tool().ready(f"n1/localhost:{port}", ()).targets


def test_a_server_that_is_not_configured_is_no_other_one(scene: Scene) -> None:
    scene.serve("sglang", "0.5.9")
    assert "names none of capture.sglang" in scene.tool().ready("n1/127.0.0.1:1", ()).reason
    assert scene.tool().ready("rl-job", ()).targets
    scene.serve("sglang", "0.5.9")
    assert not scene.tool().ready("rl-job", ()).targets


def test_a_key_is_read_from_its_file_for_each_request(scene: Scene, tmp_path: Path) -> None:
    scene.serve("sglang", "0.5.9", authorization="Bearer b")
    key = tmp_path / "key"
    key.write_text("Bearer a\n")
    tool = scene.tool(authorization_file=key)
    assert "authorization_file" in tool.ready("llama", ()).reason
    key.write_text("Bearer b\n")
    assert scene.capture(tool).state is CaptureState.DONE


def test_a_rank_that_wrote_nothing_is_reported(scene: Scene) -> None:
    server = scene.serve("sglang", "0.5.9", ranks=2)
    tool, plan = scene.tool(), scene.plan()
    targets = tool.ready("llama", ()).targets
    tool.start(targets, plan)
    server.steps(5)
    (folder,) = scene.traces.iterdir()
    next(folder.glob("*TP-1*")).unlink()
    (outcome,) = tool.stop(targets, plan)
    assert (outcome.state, len(outcome.files)) == (CaptureState.DONE, 1)
    assert outcome.reason == "1 of 2 ranks wrote no trace."


def test_a_trace_that_is_cut_is_kept_and_called_so(scene: Scene) -> None:
    server = scene.serve("sglang", "0.5.9")
    tool, plan = scene.tool(), scene.plan()
    targets = tool.ready("llama", ()).targets
    tool.start(targets, plan)
    server.steps(5)
    (trace,) = scene.traces.glob("*/*.gz")
    trace.write_bytes(trace.read_bytes()[:-20])
    (outcome,) = tool.stop(targets, plan)
    assert (outcome.state, len(outcome.files)) == (CaptureState.FAILED, 1)
    assert "1 of 1 traces are truncated" in outcome.reason


@pytest.mark.parametrize(
    ("name", "body", "good"),
    [
        ("a.trace.json", b'{"traceEvents": []}\n', True),
        ("a.trace.json", b'{"traceEvents": [{"ph"', False),
        ("a.trace.json.gz", gzip.compress(b'{"traceEvents": []}', mtime=0), True),
        ("a.trace.json.gz", gzip.compress(b'{"traceEvents": [{"ph"', mtime=0), False),
        ("a.trace.json.gz", b"", False),
    ],
)
def test_a_trace_is_whole_when_its_json_ends(tmp_path: Path, name: str, body: bytes, good: bool) -> None:
    (tmp_path / name).write_bytes(body)
    assert whole(tmp_path / name) is good


def test_traces_that_are_too_large_are_deleted(scene: Scene) -> None:
    scene.serve("sglang", "0.5.9")
    outcome = scene.capture(max_bytes=10)
    assert outcome.state is CaptureState.FAILED
    assert "capture.max_bytes" in outcome.reason
    assert list(scene.traces.iterdir()) == list(scene.captures.iterdir()) == []


def test_traces_of_before_are_not_taken_for_new_ones(scene: Scene) -> None:
    scene.serve("vllm", "0.15.0")
    old = scene.traces / "rank0.1.pt.trace.json.gz"
    old.write_bytes(gzip.compress(b"{}"))
    os.utime(old, (1, 1))
    scene.clock.advance_to_unix_ns(SystemClock().unix_ns() - 10**9)
    assert old.name not in names(scene.capture())


def test_a_server_that_dies_during_the_profile_leaves_a_reason(scene: Scene) -> None:
    server = scene.serve("sglang", "0.5.9")
    tool, plan = scene.tool(), scene.plan()
    targets = tool.ready("llama", ()).targets
    tool.start(targets, plan)
    assert tool.alive(targets)
    scene.servers.clear()
    server.close()
    assert not tool.alive(targets)
    (outcome,) = tool.stop(targets, plan)
    assert outcome.state is CaptureState.EMPTY
    assert "does not answer" in outcome.reason


def test_a_folder_that_is_not_there_is_named(scene: Scene) -> None:
    scene.serve("sglang", "0.5.9")
    tool = scene.tool()
    targets: list[CaptureTarget] = list(tool.ready("llama", ()).targets)
    scene.traces.rmdir()
    with pytest.raises(CaptureError, match="trace_directory"):
        tool.start(targets, scene.plan())


@pytest.mark.parametrize("address", ["ftp://x:1", "nowhere", "host:port"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is not a server address"):
        ServerClient(address)


@pytest.mark.parametrize(("engine", "version"), [("sglang", "0.5.23"), ("vllm", "0.33.0")])
def test_what_a_server_wrote_distinguishes_prefill_from_decode(
    scene: Scene, capsys: pytest.CaptureFixture[str], engine: str, version: str
) -> None:
    scene.serve(engine, version, ranks=2)
    outcome = scene.capture()
    ranks = read_traces(outcome.files)
    assert [rank.rank for rank in ranks] == [0, 1]
    assert main(["analyze", "--json", *map(str, outcome.files)]) == 0
    document = json.loads(capsys.readouterr().out)
    phases = {phase["name"]: phase for phase in document["ranks"][0]["phases"]}
    # The window begins with the first kernel, which the first prefill launches: it is cut.
    assert {name: phase["count"] for name, phase in phases.items()} == {"prefill step": 1, "decode step": 6}
    assert phases["decode step"]["busy_s"] == pytest.approx(6 * 0.010)


RULES = """
groups:
  - name: test
    rules:
      - alert: Busy
        expr: perfd_server_running_requests > 100
        labels: {severity: warning, capture: serving}
        annotations: {summary: busy}
"""


@pytest.mark.parametrize("by_alertmanager", [False, True], ids=["own rules", "alertmanager"])
def test_a_rule_that_fires_captures_the_server_that_it_names(
    tmp_path: Path, by_alertmanager: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """From /metrics to a trace: real collector, agent, wire, aggregator and rules; stand-in servers."""
    traces, rules = tmp_path / "traces", tmp_path / "rules.yaml"
    traces.mkdir()
    rules.write_text("groups: []\n" if by_alertmanager else RULES)
    calm, busy = (StandInServer("sglang", "0.5.9", traces, page=page(running)) for running in (1, 200))
    aggregator = Aggregator(
        AggregatorConfig(
            listen="127.0.0.1:0",
            http_listen="127.0.0.1:0",
            rules=RulesConfig(builtin=False, files=[str(rules)], interval_s=0.1),
            capture_profiles={"serving": CaptureProfile(steps=5)},
            capture_reports=False,
        ),
        manual=True,
    )
    aggregator.start()
    config = AgentConfig(
        node="n1",
        listen=None,
        uplink=UplinkConfig(address=aggregator.grpc_address, batch_interval_s=0.05, backoff_initial_s=0.05),
        capture=AgentCaptureConfig(
            output_directory=str(tmp_path / "captures"),
            min_free_bytes=0,
            sglang=tuple(
                ServerConfig(address=server.address, trace_directory=str(traces)) for server in (calm, busy)
            ),
        ),
    )
    options = {"urls": [f"http://{server.address}" for server in (calm, busy)], "discover": False}
    task = CollectorTask(
        SGLANG, CollectorConfig(options=options, interval_s=0.1), Settings(node="n1", job="job")
    )
    agent = Agent(config, node="n1", spool_directory=tmp_path / "spool", tasks=[task])
    agent.start()
    try:
        labels = {"capture": "serving", "node": "n1", "server": busy.address, "job": "the scrape's"}
        reported = Alert(name="Busy", labels=labels, state=AlertState.FIRING, fired_at_unix_s=1.0)
        (capture,) = until_final(aggregator, busy, [reported] if by_alertmanager else [])
        assert (capture["job"], capture["alert"]) == (f"n1/{busy.address}", "Busy")
        assert (capture["state"], capture["reason"]) == ("done", "")
        assert (capture["server"], capture["tool"]) == (True, "sglang")
        (target,) = capture["ranks"]
        assert read_traces([Path(file["path"]) for file in target["files"]])
        assert [alert["captures"] for alert in aggregator.alerts()] == (
            [] if by_alertmanager else [[capture["id"]]]
        )
        assert calm.asked == []
        assert main(["capture", "show", capture["id"], "--aggregator", str(aggregator.http_address)]) == 0
        shown = capsys.readouterr().out
        assert f"sglang of server n1/{busy.address}" in shown
        assert "the server on n1: done" in shown
    finally:
        agent.stop()
        aggregator.stop()
        for server in (calm, busy):
            server.close()


def page(running: float) -> bytes:
    labels = {"model_name": "m", "tp_rank": "0"}
    return (
        gauge("sglang:num_running_reqs", (labels, running))
        + gauge("sglang:num_queue_reqs", (labels, 0))
        + counter("sglang:generation_tokens_total", (labels, 5))
    ).encode()


def until_final(
    aggregator: Aggregator, server: StandInServer, reported: Sequence[Alert]
) -> list[dict[str, Any]]:
    """The captures once none is open; the server works meanwhile."""
    waiting = threading.Event()
    for _ in range(2000):
        aggregator.tick()
        # An Alertmanager tells again and again; only the first time that the server is known counts.
        aggregator.receive_alerts(reported)
        server.steps(1)
        found = aggregator.captures()
        if found and all(capture["state"] != "open" for capture in found):
            return found
        waiting.wait(0.02)
    raise AssertionError(f"no capture ended: {aggregator.captures()}")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step[DECODE bs=8]", "decode step"),
        ("step[EXTEND bs=3 toks=2048]", "prefill step"),
        ("step[MIXED bs=9 c_sq=1 g_sq=8]", "mixed step"),
        ("step[TARGET_VERIFY bs=4]", "verify step"),
        ("step[DRAFT_EXTEND_V2 bs=4]", "draft_extend_v2 step"),
        ("execute_context_0(0)_generation_8(8)", "decode step"),
        ("execute_context_1(2048)_generation_0(0)", "prefill step"),
        ("execute_2056_context_1(sq2048sk9sqsq1sqsk2)_generation_8(sq8sk9sqsq8sqsk9)", "mixed step"),
        ("step", None),
        ("execute_model", None),
        ("step[]", None),
    ],
)
def test_ranges_of_engines_are_steps_by_their_kind(name: str, step: str | None) -> None:
    assert step_name(name) == step
