"""Nodes over many jobs: recordings with a culprit, errors of hardware, restarts, drains and what is told."""

import json
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import yaml
from aggregator.support import START_S, aggregator, gpus, place, step

from perfd.aggregator.audit import AuditLog
from perfd.aggregator.limits import Limits
from perfd.aggregator.nodes import DrainRunner, NodeMemory
from perfd.aggregator.nodes.drain_runner import run_command
from perfd.aggregator.nodes.hardware_counters import PROGRAM_ERRORS
from perfd.aggregator.state import AggregatorState
from perfd.capture.policy.policy_events import ManualRequest
from perfd.cli import main
from perfd.clock import VirtualClock
from perfd.config import HistoryConfig, NodeDrainConfig, NodesConfig
from perfd.errors import ConfigError
from perfd.model import (
    CaptureState,
    CaptureStatus,
    Event,
    EventKind,
    GpuInfo,
    SampleTable,
    Scope,
)
from perfd.nodes import DONE, DrainLimits, NodeLedger, Scheduler
from perfd.recording.recording_format import find_recording
from perfd.session.replay_session import ReplayOptions, replay
from perfd.session.session_config import SessionConfig
from tests.support.fake_agent import FakeAgent

ROOT = Path(__file__).parents[2]


class Cluster:
    """Plays recordings as jobs on nodes of one cluster, each with an aggregator of its own on one history."""

    def __init__(self, path):
        self._path = path
        self.history = HistoryConfig(path=str(path / "history.sqlite"))

    def play(self, recording, node, job):
        """One job from its begin to its end; the nodes that are known then, by name."""
        folder = self._path / job
        shutil.copytree(find_recording(recording), folder)
        (folder / "node0").rename(folder / node)
        about = json.loads((folder / "recording.json").read_text().replace("node0", node))
        (folder / "recording.json").write_text(json.dumps({**about, "name": job}))
        config = SessionConfig()
        settings = msgspec.structs.replace(config.aggregator, history=self.history)
        found = []
        replay(
            ReplayOptions(recording=folder, config=msgspec.structs.replace(config, aggregator=settings)),
            on_end=lambda _, running: found.extend(running.nodes(blamed_only=False)),
        )
        return {entry["node"]: entry for entry in found}


@pytest.mark.slow
def test_a_node_that_slows_job_after_job_becomes_a_suspect_and_its_busy_peers_do_not(tmp_path):
    cluster = Cluster(tmp_path)
    for number, recording in enumerate(["dp4", "dp4", "dp4", "pp2dp2", "dp4"]):
        cluster.play(recording, f"n{number % 3}", f"good{number}")
    suspected = []
    for number in range(4):
        nodes = cluster.play("dp4_slow2", "n9", f"slow{number}")
        suspected.append(nodes["n9"]["suspect"])
    assert suspected == [False, False, False, True]
    bad = nodes["n9"]
    assert bad["gpus"][0]["gpu"] == "2"
    assert [one["kind"] for one in bad["incident_list"]] == ["straggler"] * 4
    assert {one["job"] for one in bad["incident_list"]} == {f"slow{number}" for number in range(4)}
    assert bad["lost_gpu_h"] > 0
    assert "GPU 2: straggler x4 in 4 jobs" in bad["advice"][0]["command"]
    assert all(not nodes[f"n{number}"]["incident_list"] for number in range(3))


class Fleet:
    """Nodes with a GPU each that run one job, and time that passes by looks."""

    def __init__(self, running, clock, count=3):
        self.running = running
        self._clock = clock
        self._steps = 0
        self.agents = [
            FakeAgent(running.grpc_address, node=f"n{node}", agent_id=f"a{node}") for node in range(count)
        ]

    def __enter__(self):
        for agent in self.agents:
            agent.__enter__()
            agent.hello()
        return self

    def __exit__(self, *error):
        for agent in self.agents:
            agent.__exit__(*error)

    def look(self, *, job="llm", times=1, downs=None, uuids=None, errors=()):
        """Let five seconds pass at a time, with a step and readings of each node."""
        for _ in range(times):
            self._clock.advance(5.0)
            self._steps += 1
            now_s = self._clock.unix_ns() / 1e9
            for rank, agent in enumerate(self.agents):
                uuid = (uuids or {}).get(agent.node, f"GPU-{agent.node}")
                agent.send(
                    GpuInfo(index=0, name="NVIDIA H200", uuid=uuid),
                    place(rank, 0, job=job),
                    gpus(now_s, busy_ratio=0.9),
                    step(self._steps, job=job, time_s=now_s),
                    *([] if downs is None else [ports(now_s, downs.get(agent.node, 0.0))]),
                    *(event for node, event in errors if node == agent.node),
                )
            self.running.tick()

    def nodes(self):
        return {entry["node"]: entry for entry in self.running.nodes(blamed_only=False)}


def ports(now_s, downs):
    return SampleTable(
        scope=Scope.NIC,
        times_unix_ns=[round(now_s * 1e9)],
        entities=["mlx5_0:1"],
        columns={"link_downs": [downs]},
    )


def xid(code, *, job=None):
    return Event(
        kind=EventKind.HARDWARE_ERROR,
        time_unix_ns=round(START_S * 1e9),
        message=f"Xid {code}",
        gpu=0,
        code=code,
        job=job,
    )


@pytest.fixture
def clock():
    return VirtualClock(round(START_S * 1e9))


def test_errors_of_hardware_are_remembered_and_those_of_programs_are_not(clock):
    with aggregator(clock) as running, Fleet(running, clock) as fleet:
        fleet.look(times=2, downs={"n2": 7.0})
        errors = [("n0", xid(79)), ("n0", xid(79)), ("n1", xid(31)), ("n1", xid(94))]
        fleet.look(downs={"n2": 9.0}, errors=errors)
        nodes = fleet.nodes()
        reported = {
            name: [(one["kind"], one["count"]) for one in nodes[name]["incident_list"]] for name in nodes
        }
        assert reported == {
            "n0": [("hardware_error", 2)],
            "n1": [("memory_error", 1)],
            "n2": [("link_down", 2)],
        }
        fleet.look(times=3, downs={"n2": 9.0})
        assert [one["count"] for one in fleet.nodes()["n0"]["incident_list"]] == [2], "once"
        assert nodes["n0"]["observed_gpu_h"] == pytest.approx(15 / 3600, rel=0.01)
        assert nodes["n0"]["kind"] == "NVIDIA H200"


def test_what_programs_cause_is_what_the_rules_leave_out():
    (group,) = [
        one
        for one in yaml.safe_load((ROOT / "rules" / "hardware.yaml").read_text())["groups"]
        if one["name"] == "perfd-gpu-errors"
    ]
    expression = next(rule["expr"] for rule in group["rules"] if rule["alert"] == "PerfdGpuError")
    assert f'code!~"{"|".join(sorted(PROGRAM_ERRORS, key=int))}"' in expression


def test_a_restart_of_the_aggregator_forgets_nothing(clock, tmp_path):
    history = {"history": HistoryConfig(path=str(tmp_path / "history.sqlite"))}
    with aggregator(clock, **history) as running, Fleet(running, clock) as fleet:
        fleet.look()
        fleet.look(errors=[("n0", xid(79))])
        before = fleet.nodes()
    with aggregator(clock, **history) as running:
        after = {entry["node"]: entry for entry in running.nodes(blamed_only=False)}
        assert after.keys() == before.keys()
        (one,) = after["n0"]["incident_list"]
        assert (one["kind"], one["count"], one["job"]) == ("hardware_error", 1, "llm")
        assert after["n0"]["observed_gpu_h"] == pytest.approx(before["n0"]["observed_gpu_h"])
        assert 'perfd_node_incidents{node="n0"} 1.0' in running.page().decode()
        assert "perfd_node_suspect_ratio{" not in running.page().decode(), "one job alone"


def test_a_gpu_that_was_replaced_takes_its_incidents_with_it(clock):
    with aggregator(clock) as running, Fleet(running, clock) as fleet:
        fleet.look(times=2, errors=[("n0", xid(79))])
        assert fleet.nodes()["n0"]["incidents"] == 1.0
        fleet.look(uuids={"n0": "GPU-new"})
        assert fleet.nodes()["n0"]["incidents"] == 0.0


def test_a_capture_that_failed_on_a_node_is_remembered_once(clock):
    with aggregator(clock) as running, Fleet(running, clock) as fleet:
        fleet.look(times=2)
        view = running._rounds.view("llm")
        running._captures.request(ManualRequest(capture_id="c1", job=view, ranks="1"))
        fleet.agents[1].say(
            CaptureStatus(
                capture_id="c1",
                state=CaptureState.FAILED,
                time_unix_ns=1,
                reason="The disk is full.",
                ranks=[1],
            )
        )
        fleet.look(times=4)
        (one,) = fleet.nodes()["n1"]["incident_list"]
        assert (one["kind"], one["count"], one["evidence"]) == ("capture_failed", 1, "The disk is full.")
        assert fleet.nodes()["n1"]["incidents"] == pytest.approx(0.25, rel=0.01)
        assert not fleet.nodes()["n0"]["incident_list"]


def bad_node(fleet, jobs=6):
    for number in range(jobs):
        fleet.look(job=f"job{number}", times=2, errors=[("n0", xid(79, job=f"job{number}"))])


def test_a_suspect_is_a_series_an_alert_and_an_answer_with_a_command(clock, capsys):
    with aggregator(clock, http_listen="127.0.0.1:0") as running, Fleet(running, clock, count=12) as fleet:
        bad_node(fleet)
        assert 'perfd_node_suspect_ratio{node="n0"} 0.99' in running.page().decode()
        url = f"http://{running.http_address}"
        assert main(["nodes", "--aggregator", url, "--suspects"]) == 1
        shown = capsys.readouterr().out
        assert "scontrol update NodeName=n0 State=DRAIN 'Reason=perfd: GPU 0: hardware error x6" in shown
        assert "kubectl taint nodes n0 perfd.io/suspect=true:NoSchedule" in shown
        assert "n1" not in shown.split()
        assert main(["nodes", "--aggregator", url, "--json", "--all"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["schema"] == "perfd.nodes/1"
        assert next(node["node"] for node in document["nodes"]) == "n0"
        assert len(document["nodes"]) == 12
        assert main(["nodes", "--aggregator", url, "--node", "n0"]) == 0
        assert "XID 79" in capsys.readouterr().out
        assert main(["nodes", "--aggregator", url, "--incident", "link_down"]) == 0
        assert "No such node was blamed; `perfd nodes --all`" in capsys.readouterr().out
        assert main(["nodes", "--aggregator", url, "--node", "nobody"]) == 2
        assert "nobody" in capsys.readouterr().err


def runner(tmp_path, run, nodes_per_day=1):
    audit = tmp_path / "audit.jsonl"
    limits = DrainLimits(scheduler=Scheduler.SLURM, nodes_per_day=nodes_per_day)
    return DrainRunner(limits, AuditLog(audit), run), audit


def test_perfd_drains_only_where_that_is_switched_on_and_writes_it_down(clock, tmp_path, monkeypatch):
    ran = []

    def scontrol(command, **_):
        ran.append(command)
        return type("Ran", (), {"returncode": 0, "stdout": b"", "stderr": b""})()

    monkeypatch.setattr("perfd.aggregator.nodes.drain_runner.subprocess.run", scontrol)
    with aggregator(clock) as running, Fleet(running, clock, count=12) as fleet:
        bad_node(fleet)
        assert fleet.nodes()["n0"]["suspect"]
        assert fleet.nodes()["n0"]["drain"] is None
    assert ran == []
    allowed = {
        "nodes": NodesConfig(drain=NodeDrainConfig(scheduler="slurm")),
        "audit_file": str(tmp_path / "audit"),
        "history": HistoryConfig(path=str(tmp_path / "history.sqlite")),
    }
    for _ in range(2):
        with aggregator(clock, **allowed) as running, Fleet(running, clock, count=12) as fleet:
            bad_node(fleet)
            running._nodes._drains.wait(60.0)
            fleet.look()
            assert fleet.nodes()["n0"]["drain"]["outcome"] == "done"
            assert 'perfd_node_drains{outcome="done"} 1.0' in running.page().decode()
    assert [command[:4] for command in ran] == [["scontrol", "update", "NodeName=n0", "State=DRAIN"]], "once"
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert [line["action"] for line in lines] == ["node drain", "node drain ended"]
    assert lines[0]["node"] == "n0"
    assert lines[1]["outcome"] == "done"


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        (["true"], DONE),
        (["/nonexistent/scontrol"], "/nonexistent/scontrol: No such file or directory."),
        (["sh", "-c", "echo slurm is away >&2; exit 3"], "sh exited with 3: slurm is away"),
        (["false"], "false exited with 1: it said nothing"),
    ],
)
def test_what_came_of_a_command_is_reported(command, outcome):
    assert run_command(command) == outcome


@pytest.mark.parametrize(
    ("nodes", "key"),
    [
        (NodesConfig(half_life_days=0.0), "nodes.half_life_days"),
        (NodesConfig(half_life_days=float("nan")), "nodes.half_life_days"),
        (NodesConfig(drain=NodeDrainConfig(scheduler="slurm", nodes_per_day=0)), "nodes_per_day"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(nodes, key):
    with pytest.raises(ConfigError, match=key), aggregator(nodes=nodes):
        pass


def test_history_of_the_version_before_is_taken_over(tmp_path, clock):
    path = tmp_path / "history.sqlite"
    with aggregator(clock, history=HistoryConfig(path=str(path))):
        pass
    with sqlite3.connect(path) as old:
        old.execute("DROP TABLE node_memory")
        old.execute("PRAGMA user_version = 4")
    with aggregator(clock, history=HistoryConfig(path=str(path))) as running, Fleet(running, clock) as fleet:
        fleet.look(times=2, errors=[("n0", xid(79))])
    with aggregator(clock, history=HistoryConfig(path=str(path))) as running:
        assert [entry["node"] for entry in running.nodes()] == ["n0"]


def test_no_round_looks_at_a_whole_fleet_and_each_node_has_its_turn_every_five_seconds(monkeypatch):
    looks: list[str] = []
    observe = NodeLedger.observe

    def counted(ledger, node, *facts):
        looks.append(node)
        return observe(ledger, node, *facts)

    monkeypatch.setattr(NodeLedger, "observe", counted)
    state = AggregatorState.empty(Limits())
    for number in range(320):
        state.fleet.node(f"n{number}")
    memory = NodeMemory(state, None, half_life_days=1)
    rounds = []
    for second in range(26):
        looks.clear()
        memory.take({}, START_S + second, float(second))
        rounds.append(list(looks))
    assert len(rounds[0]) == 320, "new nodes are looked at once"
    later = [node for seen in rounds[6:26] for node in seen]
    assert Counter(later) == dict.fromkeys(state.fleet.nodes, 4)
    assert max(map(len, rounds[1:])) <= 80


def test_without_a_blamed_node_all_nodes_are_one_option_away(clock, capsys):
    with aggregator(clock, http_listen="127.0.0.1:0") as running:
        running.tick()
        assert main(["nodes", "--aggregator", f"http://{running.http_address}"]) == 0
        assert "No node was blamed yet; `perfd nodes --all` lists the others, too." in capsys.readouterr().out
