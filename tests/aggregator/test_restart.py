"""Alerts over a restart of the aggregator: timers go on, and nothing that fires is lost or told twice."""

import contextlib
import sqlite3
from pathlib import Path

import pytest
from aggregator.support import START_S, aggregator, place, step
from exporters.support import Receiver, until

from perfd.aggregator import Aggregator
from perfd.aggregator.history.history_reader import HistoryReader
from perfd.aggregator.history.sqlite import SqliteDatabase
from perfd.aggregator.history.sqlite.sqlite_tables import SCHEMA
from perfd.clock import VirtualClock
from perfd.config import (
    AggregatorConfig,
    AlertmanagerConfig,
    ExportersConfig,
    HistoryConfig,
    RulesConfig,
)
from perfd.model import CaptureRequest, CaptureTool
from tests.support.fake_agent import FakeAgent

RULES = """
groups:
- name: test
  rules:
  - alert: Slow
    expr: perfd_step_time_last_seconds > 5
    labels: {capture: default}
    annotations: {summary: "{{ $labels.perfd_job }} is slow"}
  - alert: SlowForLong
    expr: perfd_step_time_last_seconds > 5
    for: 100s
"""


class SteppingClock(VirtualClock):
    """A clock whose wall time may be set; the time that has passed goes on."""

    stepped_ns = 0

    def unix_ns(self):
        return super().unix_ns() + self.stepped_ns


@pytest.fixture
def clock():
    return SteppingClock(round(START_S * 1e9))


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return {
        "rules": RulesConfig(builtin=False, files=[str(path)], interval_s=1.0),
        "history": HistoryConfig(path=str(tmp_path / "history.sqlite")),
    }


def feed(running, clock, numbers, *, agent_id="agent0", **fields):
    """Steps, one a second, with a round after each."""
    with FakeAgent(running.grpc_address, agent_id=agent_id) as agent:
        agent.hello(tools=[CaptureTool.NSYS])
        agent.send(place(0, 0))
        for number in numbers:
            clock.advance(1.0)
            agent.send(step(number, time_s=clock.unix_ns() / 1e9, **fields), sent_unix_ns=clock.unix_ns())
            running.tick()
        return agent.receive() if fields.get("step_time_s", 0) > 5 and agent_id == "agent0" else None


def states(running):
    return {alert["name"]: alert["state"] for alert in running.alerts()}


def wait(running, clock, seconds):
    """Time in which rounds go by."""
    for _ in range(seconds):
        clock.advance(1.0)
        running.tick()


def test_what_fires_goes_on_and_starts_no_second_capture(clock, config):
    with aggregator(clock, **config) as running:
        assert isinstance(feed(running, clock, [1], step_time_s=9.0), CaptureRequest)
        [before] = running.alerts()
    clock.advance(20.0)
    with aggregator(clock, **config) as running:
        feed(running, clock, [2], agent_id="agent1", step_time_s=9.0)
        [after] = running.alerts()
        assert after == {**before, "value": 9.0}
        assert after["annotations"] == {"summary": "llm is slow"}
        assert len(running.captures()) == 1
        [summary] = running.summary("llm")
        assert [(one.name, one.first_step) for one in summary.alerts] == [("Slow", 1)]
        feed(running, clock, [3, 4], agent_id="agent2", step_time_s=1.0)
        assert states(running) == {"Slow": "resolved"}


def test_a_for_is_not_started_over(clock, config):
    with aggregator(clock, **config) as running:
        feed(running, clock, [1], step_time_s=9.0)
        wait(running, clock, 90)
        assert "SlowForLong" not in states(running)
    clock.advance(20.0)
    with aggregator(clock, **config) as running:
        assert "SlowForLong" not in states(running)
        wait(running, clock, 11)
        assert states(running)["SlowForLong"] == "firing"


def test_an_alert_that_waits_does_not_fire_because_the_clock_was_set_ahead(clock, config):
    with aggregator(clock, **config) as running:
        feed(running, clock, [1], step_time_s=9.0)
        clock.stepped_ns = round(600e9)
        wait(running, clock, 90)
        assert "SlowForLong" not in states(running)
    with aggregator(clock, **config) as running:
        wait(running, clock, 5)
        assert "SlowForLong" not in states(running)
        wait(running, clock, 6)
        assert states(running)["SlowForLong"] == "firing"


def test_it_is_the_same_after_a_kill(clock, config, tmp_path):
    killed = Aggregator(
        AggregatorConfig(listen="127.0.0.1:0", http_listen=None, **config), clock, manual=True
    )
    killed.start()
    try:
        feed(killed, clock, [1], step_time_s=9.0)
        wait(killed, clock, 90)
        reader = HistoryReader(SqliteDatabase(Path(_path(config))))
        until(lambda: reader.engine_state().time_unix_s >= START_S + 75)
        # The other one has not stopped: nothing that it would write at its end is there.
        left = tmp_path / "left.sqlite"
        with contextlib.closing(sqlite3.connect(_path(config))) as source:
            source.execute("VACUUM INTO ?", (str(left),))
        with aggregator(clock, **{**config, "history": HistoryConfig(path=str(left))}) as running:
            assert states(running) == {"Slow": "firing"}
            wait(running, clock, 26)
            assert states(running)["SlowForLong"] == "firing"
    finally:
        killed.stop()


def test_the_end_of_an_alert_whose_rule_was_removed_meanwhile_is_reported(clock, config):
    with aggregator(clock, **config) as running:
        feed(running, clock, [1], step_time_s=9.0)
    without = {**config, "rules": RulesConfig(builtin=False)}
    with aggregator(clock, **without) as running:
        assert states(running) == {"Slow": "resolved"}
    with aggregator(clock, **without) as running:
        assert states(running) == {"Slow": "resolved"}


def test_an_alertmanager_receives_the_same_alert_again_and_its_end(clock, config):
    with Receiver() as receiver:
        exporters = ExportersConfig(alertmanager=AlertmanagerConfig(urls=[receiver.url]))
        with aggregator(clock, exporters=exporters, **config) as running:
            feed(running, clock, [1], step_time_s=9.0)
        clock.advance(20.0)
        with aggregator(clock, exporters=exporters, **config) as running:
            feed(running, clock, [2, 3], agent_id="agent1", step_time_s=1.0)
        reported = [one for body in receiver.bodies for one in body if one["labels"]["alertname"] == "Slow"]
    assert len({one["startsAt"] for one in reported}) == 1
    assert [one["endsAt"] > one["startsAt"] for one in reported] == [True] * len(reported)
    ends = [one["endsAt"] for one in reported]
    assert ends[0] < ends[1] > ends[2]


def test_a_file_of_an_older_perfd_is_taken_over(clock, config):
    old = sqlite3.connect(_path(config))
    old.executescript(SCHEMA.replace(", body BLOB,\n  PRIMARY", ",\n  PRIMARY").replace(_EPOCH, ""))
    old.execute("DROP TABLE engine")
    old.execute("INSERT INTO alerts VALUES ('llm', 'Old', '{}', 'firing', 1, 1.0, 1.0)")
    old.execute("PRAGMA user_version = 1")
    old.commit()
    old.close()
    with aggregator(clock, **config) as running:
        feed(running, clock, [1], step_time_s=9.0)
    with aggregator(clock, **config) as running:
        assert states(running) == {"Slow": "firing"}


def test_a_state_that_cannot_be_read_costs_the_state_and_not_the_start(clock, config, caplog):
    with aggregator(clock, **config) as running:
        feed(running, clock, [1], step_time_s=9.0)
    broken = sqlite3.connect(_path(config))
    broken.execute("UPDATE engine SET body = x'00'")
    broken.execute("UPDATE alerts SET body = x'c1'")
    broken.commit()
    broken.close()
    with aggregator(clock, **config) as running:
        assert states(running) == {"Slow": "firing"}
    assert "cannot be read and is left out" in caplog.text


_EPOCH = ", epoch TEXT NOT NULL DEFAULT ''"


def _path(config):
    return Path(config["history"].path)
