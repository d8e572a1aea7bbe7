"""Agents of a large fleet are asked for fewer batches while their jobs are calm, and alerts come in time."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from aggregator.support import START_S, aggregator, gpus, place, source, step

from perfd.agent.collection import BatchPace, in_other_intervals
from perfd.aggregator import Aggregator
from perfd.aggregator.ingest import TelemetryServer
from perfd.aggregator.notices import batch_intervals
from perfd.aggregator.notices.batch_intervals import QUIET_INTERVAL_S, BatchIntervals, NodesOfJob
from perfd.clock import VirtualClock
from perfd.config import RulesConfig
from perfd.model import BatchInterval, Hello, NodeMessage, Record

_MANY = {f"n{number}": number for number in range(40)}
_CALM = [NodesOfJob(list(_MANY), calm=True)]


def test_nodes_whose_jobs_are_all_calm_are_asked_once() -> None:
    intervals = BatchIntervals()
    jobs = [
        NodesOfJob(["n1", "n2"], calm=True),
        NodesOfJob(["n2", "n3"], calm=False),
        NodesOfJob(["n4", "gone"], calm=True),
    ]
    assert intervals.take(jobs, _MANY, (), 0.0) == {"n1": QUIET_INTERVAL_S, "n4": QUIET_INTERVAL_S}
    assert intervals.take(jobs, _MANY, (), 1.0) == {}
    jobs[1] = NodesOfJob(["n2", "n3"], calm=True)
    jobs[0] = NodesOfJob(["n1", "n2"], calm=False)
    assert intervals.take(jobs, _MANY, (), 2.0) == {"n1": 0.0, "n3": QUIET_INTERVAL_S}


def test_few_nodes_are_asked_for_nothing() -> None:
    intervals = BatchIntervals()
    few = dict(list(_MANY.items())[:32])
    assert intervals.take(_CALM, few, (), 0.0) == {}
    assert len(intervals.take(_CALM, few | {"n39": 1}, (), 1.0)) == 33
    # The one that left gets nothing.
    assert intervals.take(_CALM, few, (), 2.0) == dict.fromkeys(few, 0.0)


def test_an_agent_that_connected_again_is_asked_again() -> None:
    intervals = BatchIntervals()
    intervals.take(_CALM, _MANY, (), 0.0)
    assert intervals.take(_CALM, _MANY | {"n7": 99}, (), 1.0) == {"n7": QUIET_INTERVAL_S}
    # What it was not asked for is not taken back.
    assert "n8" not in intervals.take((), _MANY | {"n7": 99, "n8": 98}, (), 2.0)


def test_a_pending_alert_ends_it_and_it_begins_again_half_a_minute_later() -> None:
    intervals = BatchIntervals()
    intervals.take(_CALM, _MANY, (), 0.0)
    assert intervals.take(_CALM, _MANY, {"n3"}, 10.0) == {"n3": 0.0}
    assert intervals.take(_CALM, _MANY, {"n3"}, 11.0) == {}
    assert intervals.take(_CALM, _MANY, (), 40.9) == {}
    assert intervals.take(_CALM, _MANY, (), 41.0) == {"n3": QUIET_INTERVAL_S}


_JOBS, _EACH, _GPUS = 5, 10, 8
_RULES = """
groups:
- name: fleet
  rules:
  - {alert: StepsLonger, expr: perfd_step_time_regression_ratio > 0.1, for: 1s}
- name: nodes
  interval: 1s
  rules:
  - {alert: PowerLow, expr: perfd_gpu_power_watts < 300, for: 1s}
"""


class Agents:
    """Nodes of 8 GPUs in jobs of ten, whose agents pace their batches as real ones do."""

    def __init__(self, running: Aggregator, clock: VirtualClock) -> None:
        self._running, self._clock = running, clock
        self._seconds = 0
        self.power_w: dict[str, float] = {}
        self.step_time_s: dict[str, float] = {}
        self.asked: list[tuple[int, str, float]] = []
        """What agents received: in which second, which node, and the interval."""
        self.batches: list[tuple[int, str]] = []
        """In which second which node sent one."""
        self._pace = {
            f"job{job}-node{node}": BatchPace(interval_s=1.0, quiet_interval_s=None)
            for job in range(_JOBS)
            for node in range(_EACH)
        }
        self._collected: dict[str, list[Record]] = {name: [] for name in self._pace}
        self._sent_s = dict.fromkeys(self._pace, START_S)
        for number, name in enumerate(self._pace):
            self.connect(name, number + 1)
            first = int(name.rpartition("node")[2]) * _GPUS
            self._collected[name] += [place(first + gpu, gpu, job=name[:4]) for gpu in range(_GPUS)]

    def connect(self, name: str, stream: int) -> None:
        """An agent says Hello."""
        hello = Hello(
            agent_id=name,
            node=name,
            perfd_version="test",
            sent_unix_ns=self._clock.unix_ns(),
            first_sequence=1,
        )
        with self._running.state.lock:
            self._running.state.agents.greet(hello, stream, self._clock.monotonic_s(), self._clock.unix_ns())
        self._pace[name].ask(0.0)

    def deliver(self, node: str, message: NodeMessage) -> None:
        """What the aggregator sends to an agent."""
        if isinstance(message, BatchInterval):
            self.asked.append((self._seconds, node, message.quiet_s))
            self._pace[node].ask(message.quiet_s)
        else:
            self._pace[node].change(float(self._seconds))

    def second(self) -> None:
        """All nodes collect once, some send, and a round follows."""
        self._seconds += 1
        self._clock.advance(1.0)
        now_s = START_S + self._seconds
        for name, pace in self._pace.items():
            job, power_w = name[:4], self.power_w.get(name, 500.0)
            records: list[Record] = [gpus(now_s, count=_GPUS, power_w=power_w, tensor_active_ratio=0.5)]
            if name.endswith("node0"):
                took_s = self.step_time_s.get(job, 1.0)
                records.append(step(self._seconds, job=job, time_s=now_s, step_time_s=took_s))
            pace.take(records, float(self._seconds))
            self._collected[name] += records
            interval_s = pace.interval_s(float(self._seconds), capturing=False)
            if interval_s <= 1.0 or in_other_intervals(self._sent_s[name], now_s, interval_s):
                self._send(name, now_s)
        self._running.tick()

    def _send(self, name: str, now_s: float) -> None:
        state, records = self._running.state, self._collected[name]
        self._collected[name], self._sent_s[name] = [], now_s
        self.batches.append((self._seconds, name))
        with state.lock:
            state.fleet.apply(records, source(agent=name, node=name, now_s=float(self._seconds)))

    def fired_s(self, names: Collection[str], within_s: int = 20) -> dict[str, int]:
        """After how many seconds each of these alerts fires."""
        found: dict[str, int] = {}
        for second in range(1, within_s + 1):
            self.second()
            for alert in self._running.alerts():
                found.setdefault(alert["name"], second)
        assert found.keys() == set(names)
        return found


@contextmanager
def calm_fleet(folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: int = 120) -> Iterator[Agents]:
    (folder / "rules.yaml").write_text(_RULES, encoding="utf-8")
    rules = RulesConfig(builtin=False, files=(str(folder / "rules.yaml"),))
    clock = VirtualClock(round(START_S * 1e9))
    with aggregator(clock, rules=rules) as running:
        agents = Agents(running, clock)
        monkeypatch.setattr(TelemetryServer, "send", lambda _, node, message: agents.deliver(node, message))
        for _ in range(seconds):
            agents.second()
        yield agents


def of_seconds(agents: Agents, first: int, last: int) -> Sequence[tuple[int, str]]:
    return [(second, name) for second, name in agents.batches if first < second <= last]


def test_all_agents_of_a_calm_fleet_send_every_third_second_at_the_same_instants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with calm_fleet(tmp_path, monkeypatch) as agents:
        instants = {second for second in range(79, 121) if (START_S + second) % QUIET_INTERVAL_S == 0}
        assert {second for second, _ in of_seconds(agents, 78, 120)} == instants
        assert len(of_seconds(agents, 78, 120)) == 14 * _JOBS * _EACH
        # Once each, half a minute after their jobs began.
        assert sorted(name for _, name, _ in agents.asked) == sorted(
            name for _, name in of_seconds(agents, 117, 120)
        )
        assert all(30 <= second <= 40 for second, _, _ in agents.asked)


def test_an_agent_that_connects_again_sends_each_second_until_it_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with calm_fleet(tmp_path, monkeypatch) as agents:
        agents.asked.clear()
        agents.connect("job1-node3", 777)
        for _ in range(10):
            agents.second()
        assert agents.asked == [(121, "job1-node3", QUIET_INTERVAL_S)]


def test_a_job_that_changes_has_all_of_its_nodes_send_each_second_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with calm_fleet(tmp_path, monkeypatch) as agents:
        agents.asked.clear()
        agents.step_time_s["job2"] = 1.5
        for _ in range(10):
            agents.second()
        assert agents.asked == [(121, f"job2-node{node}", 0.0) for node in range(_EACH)]
        sent = of_seconds(agents, 121, 130)
        assert sum(name.startswith("job2") for _, name in sent) == 9 * _EACH
        assert sum(name.startswith("job3") for _, name in sent) == 3 * _EACH


@pytest.mark.parametrize("later", [0, 1, 2])
def test_a_fault_in_a_calm_fleet_is_announced_at_most_two_seconds_later_than_by_agents_that_send_each_second(
    later: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    took_s = []
    for most in (0, 1_000):
        monkeypatch.setattr(batch_intervals, "NODES_IN_EACH_ROUND", most)
        with calm_fleet(tmp_path, monkeypatch, 120 + later) as agents:
            assert bool(agents.asked) == (most == 0)
            agents.step_time_s["job2"] = 1.5
            # Of a node without a log, whose job goes on as before.
            agents.power_w["job4-node5"] = 200.0
            took_s.append(agents.fired_s({"StepsLonger", "PowerLow"}))
    quiet, each_second = took_s
    assert each_second["PowerLow"] <= quiet["PowerLow"] <= each_second["PowerLow"] + 2
    # The node that reads the log does not wait.
    assert quiet["StepsLonger"] == each_second["StepsLonger"]
