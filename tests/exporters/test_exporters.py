"""Exporters through the aggregator, and against servers that are away, refuse, or are the real thing."""

import json
import threading

import pytest
from aggregator.support import aggregator, gpus, place, step

from perfd.clock import VirtualClock
from perfd.config import (
    AlertmanagerConfig,
    ExportersConfig,
    JsonLinesConfig,
    RemoteWriteConfig,
    WandbConfig,
)
from perfd.errors import ConfigError
from perfd.exporters.backoff import Backoff
from perfd.exporters.contract import AlertUpdate, Round, Tally
from perfd.exporters.registry import Exporters
from perfd.exporters.runner import ExporterRunner
from perfd.testing.agent import FakeAgent


def alert(name="Slow", *, fired=100.0, resolved=None, **labels):
    return AlertUpdate(
        name=name,
        labels={"alertname": name, **labels},
        annotations={},
        value=1.0,
        fired_at_unix_s=fired,
        resolved_at_unix_s=resolved,
    )


class Gate:
    """An exporter that waits until it is let through."""

    def __init__(self):
        self.rounds = []
        self.entered = threading.Event()
        self.open = threading.Event()

    def export(self, round_):
        self.entered.set()
        assert self.open.wait(30)
        self.rounds.append(round_)

    def close(self):
        pass


def test_a_slow_exporter_drops_the_oldest_rounds_and_keeps_their_alerts():
    gate = Gate()
    runner = ExporterRunner("gate", gate, Tally(), max_queued=2)
    runner.offer(Round(time_unix_s=0.0))
    assert gate.entered.wait(30)
    for second in range(1, 6):
        runner.offer(Round(time_unix_s=float(second), changes=[alert(fired=float(second))]))
    gate.open.set()
    assert runner.close(30)
    assert runner.status().dropped_rounds == 3
    assert [round_.time_unix_s for round_ in gate.rounds] == [0.0, 4.0, 5.0]
    assert [one.fired_at_unix_s for round_ in gate.rounds for one in round_.changes] == [1, 2, 3, 4, 5]


def test_an_exporter_that_raises_is_counted_and_goes_on():
    class Broken:
        def export(self, round_):
            raise ValueError(round_)

        def close(self):
            raise ValueError

    runner = ExporterRunner("broken", Broken(), Tally())
    runner.offer(Round(time_unix_s=0.0))
    runner.offer(Round(time_unix_s=1.0))
    assert runner.close(30)
    assert (runner.status().rounds, runner.status().failed_rounds) == (2, 2)


def test_the_aggregator_writes_a_line_for_each_round(tmp_path):
    path = tmp_path / "rounds.jsonl"
    exporters = ExportersConfig(jsonl=JsonLinesConfig(path=str(path)))
    with aggregator(exporters=exporters) as running:
        with FakeAgent(running.grpc_address) as agent:
            agent.hello()
            agent.send(*(step(number, time_s=1_700_000_000.0 + number) for number in range(1, 9)))
        running.tick()
        page = running.page().decode()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[-2]["schema"] == "perfd.round/1"
    assert lines[-2]["jobs"][0]["job"] == "llm"
    assert lines[-2]["jobs"][0]["numbers"]["step_time_s"] == 1.0
    assert 'perfd_exporter_lost_total{exporter="jsonl"} 0' in page


def test_a_full_file_is_set_aside(tmp_path):
    path = tmp_path / "rounds.jsonl"
    exporters = Exporters(
        ExportersConfig(jsonl=JsonLinesConfig(path=str(path), max_bytes=100)), VirtualClock()
    )
    for second in range(5):
        exporters.offer(Round(time_unix_s=float(second)))
    exporters.close(30)
    assert path.stat().st_size <= 100
    assert (tmp_path / "rounds.jsonl.1").stat().st_size <= 100


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (ExportersConfig(remote_write=RemoteWriteConfig(url="ftp://x")), "ftp://x"),
        (ExportersConfig(alertmanager=AlertmanagerConfig(urls=["nowhere"])), "nowhere"),
        (ExportersConfig(wandb=WandbConfig(mode="maybe")), "maybe"),
        (ExportersConfig(wandb=WandbConfig(mode="offline", run_id="{rank}")), "rank"),
        (ExportersConfig(others={"nobody": {}}), "nobody"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(config, words):
    with pytest.raises(ConfigError, match=words):
        Exporters(config, VirtualClock())


def test_waits_double_up_to_a_bound_and_honour_what_the_server_asks():
    backoff = Backoff(initial_s=1.0, max_s=5.0)
    waits = []
    for _ in range(4):
        backoff = backoff.failed(0.0)
        waits.append(backoff.next_try_s)
    assert waits == [1.0, 2.0, 4.0, 5.0]
    assert Backoff(initial_s=1.0, max_s=5.0).failed(0.0, at_least_s=3.0).next_try_s == 3.0


def test_wandb_offline_keeps_steps_alerts_and_the_report(tmp_path):
    config = WandbConfig(mode="offline", directory=str(tmp_path))
    with aggregator(exporters=ExportersConfig(wandb=config)) as running:
        with FakeAgent(running.grpc_address) as agent:
            agent.hello()
            agent.send(place(0, 0), gpus(1_700_000_000.0, sm_active_ratio=0.5))
            agent.send(*(step(number, time_s=1_700_000_000.0 + number) for number in range(1, 9)))
        running.tick()
    [log_file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    [report] = tmp_path.glob("wandb/offline-run-*/files/perfd-summary.json")
    content = log_file.read_bytes()
    assert b"perfd/step_time_s" in content or b"step_time_s" in content
    assert json.loads(report.read_text())["jobs"][0]["name"] == "llm"
