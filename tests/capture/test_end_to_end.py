"""From a rule to a report on the node: real aggregator, real agent, real wire, stand-in nsys."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from capture.conftest import Node

from perfd.agent.agent import Agent
from perfd.agent.collection.collector_task import CollectorTask
from perfd.aggregator.aggregator import Aggregator
from perfd.capture.node.process_environment import environment_of, pids, rank_of
from perfd.cli import main
from perfd.collector import CollectorSpec, Options, Settings
from perfd.config import (
    AgentCaptureConfig,
    AgentConfig,
    AggregatorConfig,
    CaptureProfile,
    CollectorConfig,
    HistoryConfig,
    RulesConfig,
    UplinkConfig,
)
from perfd.model import RankPlacement, TrainingStep

PY_SPY = shutil.which("py-spy", path=str(Path(sys.executable).parent))

RULES = """
groups:
  - name: test
    rules:
      - alert: Slow
        expr: perfd_step_time_last_seconds > 0.5
        labels: {severity: warning, capture: default}
        annotations: {summary: slow}
"""


class Job:
    """A collector that tells where the ranks of this test's node are, and steps of a second."""

    def __init__(self, node, settings):
        self._node = node
        self._clock = settings.clock
        self._step = 0

    def collect(self):
        self._step += 1
        placements = [
            RankPlacement(job="llama", rank=rank, local_rank=rank, world_size=2, gpu=rank, pid=pid)
            for pid in pids(Path("/proc"))
            if (environment := environment_of(Path("/proc"), pid)).get("NODE_OF_TEST")
            == str(self._node.directory)
            and (rank := rank_of(environment)) is not None
        ]
        now_unix_ns = self._clock.unix_ns()
        return [
            *placements,
            TrainingStep(job="llama", step=self._step, time_unix_ns=now_unix_ns, step_time_s=1.0),
        ]

    def close(self):
        pass


@dataclass
class System:
    """An agent, and aggregators one after the other at the same address."""

    node: Node
    directory: Path
    profile: CaptureProfile
    address: str = "127.0.0.1:0"
    started: list = field(default_factory=list)

    def aggregator(self):
        rules = self.directory / "rules.yaml"
        rules.write_text(RULES)
        aggregator = Aggregator(
            AggregatorConfig(
                listen=self.address,
                http_listen="127.0.0.1:0",
                history=HistoryConfig(path=str(self.directory / "history.sqlite")),
                rules=RulesConfig(builtin=False, files=[str(rules)], interval_s=0.1),
                capture_profiles={"default": self.profile},
                capture_reports=False,
            ),
            manual=True,
        )
        self.started.append(aggregator)
        aggregator.start()
        self.address = aggregator.grpc_address
        return aggregator

    def agent(self, **capture):
        config = AgentConfig(
            node="n1",
            listen=None,
            uplink=UplinkConfig(address=self.address, batch_interval_s=0.05, backoff_initial_s=0.05),
            capture=AgentCaptureConfig(
                nsys_path=str(self.node.nsys),
                output_directory=str(self.node.captures),
                min_free_bytes=0,
                **capture,
            ),
        )
        spec = CollectorSpec(
            name="job",
            options=Options,
            create=lambda _, settings: Job(self.node, settings),
            interval_s=0.1,
        )
        task = CollectorTask(spec, CollectorConfig(), Settings(node="n1", job="llama"))
        agent = Agent(config, node="n1", spool_directory=self.directory / "spool", tasks=[task])
        self.started.append(agent)
        agent.start()
        return agent

    def until(self, aggregator, holds):
        """Tick until one of the captures is as wanted; that capture."""

        def found():
            aggregator.tick()
            return [capture for capture in aggregator.captures() if holds(capture)]

        self.node.until(found)
        return found()[0]


@pytest.fixture
def node(make_node):
    return make_node(idle_ranks=(0,))


@pytest.fixture
def make_system(node, tmp_path, monkeypatch):
    monkeypatch.setenv("NODE_OF_TEST", str(node.directory))
    systems = []

    def make(*, launch=True, **profile):
        profile = CaptureProfile(**{"ranks": "1", "steps": None, "max_duration_s": 0.3, **profile})
        systems.append(System(node=node, directory=tmp_path, profile=profile))
        if launch:
            node.launch()
        return systems[-1]

    yield make
    for system in systems:
        for part in reversed(system.started):
            part.stop()


def test_a_rule_that_fires_leaves_a_report_of_the_asked_rank(node, make_system):
    system = make_system()
    aggregator = system.aggregator()
    system.agent()
    capture = system.until(aggregator, lambda capture: capture["state"] != "open")
    assert (capture["alert"], capture["state"], capture["reason"]) == ("Slow", "done", "")
    (rank,) = capture["ranks"]
    assert (rank["rank"], rank["node"], rank["state"]) == (1, "n1", "done")
    report, export = (Path(file["path"]) for file in rank["files"])
    assert report.parent == node.captures / capture["id"]
    assert report.stat().st_size > 0
    assert export.stat().st_size > 0
    (alert,) = aggregator.alerts()
    assert alert["captures"] == [capture["id"]]


def test_the_history_shows_how_many_whole_steps_each_rank_has(node, make_system, capsys):
    system = make_system(steps=9)
    aggregator = system.aggregator()
    system.agent()
    capture = system.until(aggregator, lambda capture: capture["state"] != "open")
    assert capture["state"] == "done"
    assert "The trace contains only 5 of the 9 requested steps." in capture["reason"]
    assert [rank["whole_steps"] for rank in capture["ranks"]] == [5], "the stand-in's steps have one kernel"


def test_a_person_starts_a_capture_and_waits_for_it(make_system, capsys):
    system = make_system()
    aggregator = system.aggregator()
    system.agent()
    system.node.until(lambda: aggregator.overview() and aggregator.jobs() == ["llama"])
    words = ["--wait", "--json", "--id", "mine", "--aggregator", aggregator.http_address]
    assert main(["capture", "start", "llama", *words]) == 0
    capture = json.loads(capsys.readouterr().out)["capture"]
    assert (capture["id"], capture["alert"], capture["state"]) == ("mine", None, "done")


def test_every_rank_has_its_own_outcome_at_the_aggregator(make_system):
    system = make_system(ranks="all")
    aggregator = system.aggregator()
    system.agent()
    capture = system.until(aggregator, lambda capture: capture["state"] != "open")
    assert {rank["rank"]: rank["state"] for rank in capture["ranks"]} == {0: "empty", 1: "done"}
    assert capture["state"] == "empty"


def test_an_aggregator_that_restarts_in_mid_capture_goes_on_with_it(node, make_system):
    system = make_system(max_duration_s=300)
    first = system.aggregator()
    system.agent()
    system.until(first, lambda capture: capture["ranks"] and capture["ranks"][0]["state"] == "running")
    first.stop()
    second = system.aggregator()
    (capture,) = second.captures()
    assert capture["state"] == "open"
    # The alert goes on, so it is no new one and starts no second capture.
    node.until(lambda: second.tick() or second.jobs() == ["llama"])
    for _ in range(3):
        second.tick()
    assert [known["id"] for known in second.captures()] == [capture["id"]]
    assert node.session_state() == "Collection"
    assert main(["capture", "cancel", capture["id"], "--aggregator", second.http_address]) == 0
    ended = system.until(second, lambda capture: capture["state"] != "open")
    assert (ended["state"], ended["ranks"][0]["state"]) == ("failed", "failed")
    assert node.session_state() == "Launched"


def test_a_capture_that_ends_while_no_aggregator_runs_is_done(node, make_system):
    system = make_system(max_duration_s=3)
    first = system.aggregator()
    system.agent()
    system.until(first, lambda capture: capture["ranks"] and capture["ranks"][0]["state"] == "running")
    first.stop()
    node.until(lambda: node.session_state() == "Launched")
    second = system.aggregator()
    capture = system.until(second, lambda capture: capture["state"] != "open")
    assert (capture["state"], capture["reason"]) == ("done", "")
    assert capture["ranks"][0]["files"]


def test_an_agent_that_stops_in_mid_capture_says_so_before_it_goes(node, make_system):
    system = make_system(max_duration_s=300)
    aggregator = system.aggregator()
    agent = system.agent()
    system.until(aggregator, lambda capture: capture["ranks"] and capture["ranks"][0]["state"] == "running")
    agent.stop()
    assert node.session_state() == "Launched"
    capture = system.until(aggregator, lambda capture: capture["state"] != "open")
    assert (capture["state"], capture["reason"]) == ("failed", "The agent was stopped during the capture.")


HANGING = """
import ctypes, threading
# Where Yama restricts ptrace to children, py-spy may look all the same.
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)

def waits_for_its_peers():
    print("hangs", flush=True)
    threading.Event().wait()

waits_for_its_peers()
"""


@pytest.mark.system
@pytest.mark.skipif(PY_SPY is None and not os.environ.get("CI"), reason="needs py-spy (`make test-system`)")
def test_a_rule_leaves_the_stacks_of_a_job_that_hangs(node, make_system):
    system = make_system(launch=False, tool="py_spy", ranks="all")
    for rank in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", HANGING],
            env={**os.environ, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        node.jobs.append(process)
        assert process.stdout.readline() == b"hangs\n"
    aggregator = system.aggregator()
    system.agent(py_spy_path=PY_SPY)
    capture = system.until(aggregator, lambda capture: capture["state"] != "open")
    assert capture["alert"] == "Slow"
    assert [(who["rank"], who["state"]) for who in capture["ranks"]] == [(0, "done"), (1, "done")], capture
    for who in capture["ranks"]:
        (threads,) = [json.loads(Path(file["path"]).read_text()) for file in who["files"]]
        names = [frame["name"] for thread in threads for frame in thread["frames"]]
        assert "waits_for_its_peers" in names


@pytest.mark.parametrize("name", ["nosuch", "n1/127.0.0.1:30000"])
def test_what_is_not_there_is_neither_a_job_nor_a_server(make_system, capsys, name):
    aggregator = make_system(ranks="all").aggregator()
    assert main(["capture", "start", name, "--aggregator", aggregator.http_address]) == 2
    assert f"There is no job or server {name!r}" in capsys.readouterr().err
    assert aggregator.captures() == []
