"""Notifications of an aggregator: nothing twice over a restart, and the straggler of a recorded job."""

import threading

import pytest
from aggregator.support import START_S, aggregator, step, values
from exporters.support import Receiver, until

from perfd.aggregator.history.database import HistoryUnavailableError
from perfd.aggregator.history.sqlite import SqliteDatabase
from perfd.clock import VirtualClock
from perfd.config import (
    AggregatorConfig,
    ExportersConfig,
    HistoryConfig,
    NotificationsConfig,
    RulesConfig,
    WebhookReceiver,
)
from perfd.net.http import Response
from perfd.recording import bundled
from perfd.session.replay_session import ReplayOptions, replay
from perfd.session.session_config import SessionConfig
from tests.support.fake_agent import FakeAgent

RULES = """
groups:
- name: test
  rules:
  - alert: Slow
    expr: perfd_step_time_last_seconds > 5
    annotations: {summary: "{{ $labels.perfd_job }} is slow"}
"""


@pytest.fixture
def clock():
    return VirtualClock(round(START_S * 1e9))


def exporters(url, **options):
    settings = {"group_wait_s": 0.0, "group_interval_s": 0.0, **options}
    return ExportersConfig(
        notifications=NotificationsConfig(webhooks=[WebhookReceiver(name="bot", url=url)], **settings)
    )


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return {
        "rules": RulesConfig(builtin=False, files=[str(path)], interval_s=1.0),
        "history": HistoryConfig(path=str(tmp_path / "history.sqlite")),
    }


def feed(running, clock, numbers, agent_id, step_time_s):
    with FakeAgent(running.grpc_address, agent_id=agent_id) as agent:
        agent.hello()
        for number in numbers:
            clock.advance(1.0)
            one = step(number, time_s=clock.unix_ns() / 1e9, step_time_s=step_time_s)
            agent.send(one, sent_unix_ns=clock.unix_ns())
            running.tick()


def test_a_restart_repeats_no_message_and_the_end_is_sent_by_the_next_process(clock, config):
    with Receiver() as receiver:
        given = {**config, "exporters": exporters(receiver.url)}
        with aggregator(clock, **given) as running:
            feed(running, clock, [1, 2], "agent0", 9.0)
            until(lambda: receiver.requests)
        clock.advance(20.0)
        with aggregator(clock, **given) as running:
            feed(running, clock, [3, 4], "agent1", 9.0)
        with aggregator(clock, **given) as running:
            feed(running, clock, [5, 6], "agent2", 1.0)
            until(lambda: len(receiver.requests) == 2)
        said = [(one["status"], one["job"], one["alerts"][0]["name"]) for one in receiver.bodies]
    assert said == [("firing", "llm", "Slow"), ("resolved", "llm", "Slow")]


def test_what_could_not_be_sent_is_sent_by_the_next_process(clock, config):
    with Receiver() as receiver:
        given = {**config, "exporters": exporters(receiver.url)}
        receiver.answer = lambda _: Response(body=b"", status=503)
        with aggregator(clock, **given) as running:
            feed(running, clock, [1, 2], "agent0", 9.0)
            until(lambda: receiver.requests)
            page = running.page().decode()
            until(
                lambda: (
                    'perfd_exporter_retries_total{exporter="notifications-bot"} 1' in running.page().decode()
                )
            )
            assert 'exporter="notifications-bot"' in page
        failed = [one["id"] for one in receiver.bodies]
        receiver.requests.clear()
        receiver.answer = lambda _: Response(body=b"")
        with aggregator(clock, **given) as running:
            feed(running, clock, [3, 4], "agent1", 9.0)
            until(lambda: receiver.requests)
        [message] = receiver.bodies
    assert set(failed) == {message["id"]}


def test_the_straggler_of_a_recorded_job_arrives_with_its_finding():
    with Receiver() as receiver:
        settings = exporters(receiver.url, external_url="http://perfd.example", group_wait_s=30.0)
        session = SessionConfig(aggregator=AggregatorConfig(exporters=settings))
        replay(ReplayOptions(recording=bundled("dp4_slow2"), config=session))
        found = [
            one
            for one in receiver.bodies
            if any(alert["name"] == "PerfdStraggler" for alert in one["alerts"])
        ]
    first = found[0]
    [alert] = [one for one in first["alerts"] if one["name"] == "PerfdStraggler"]
    assert alert["labels"]["rank"] == "2"
    assert first["url"] == f"http://perfd.example/jobs/{first['job']}"
    straggler = next(one for one in first["findings"] if one["kind"] == "straggler")
    assert [one["id"] for one in straggler["culprits"]] == [2]
    assert straggler["gain_ratio"] > 0
    assert straggler["advice"]
    assert straggler["evidence"][0] in first["text"]


@pytest.fixture
def outage(monkeypatch):
    """While it is set no history can be written."""
    began = threading.Event()
    write = SqliteDatabase.write

    def refuse(database, statements):
        if began.is_set():
            raise HistoryUnavailableError("away")
        write(database, statements)

    monkeypatch.setattr(SqliteDatabase, "write", refuse)
    return began


def fire(running, clock, outage, receiver):
    """Let an alert fire while history cannot be written, and wait until people hear of it."""
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        agent.send(step(1, time_s=clock.unix_ns() / 1e9, step_time_s=9.0), sent_unix_ns=clock.unix_ns())
        outage.set()
        for _ in range(20):
            clock.advance(1.0)
            running.tick()
        until(lambda: starts(receiver))


def starts(receiver):
    """When the alerts fired that were announced."""
    return [
        alert["fired_at_unix_s"]
        for one in receiver.bodies
        for alert in one["alerts"]
        if alert["new"] and alert["state"] == "firing"
    ]


def test_an_alert_that_fires_while_history_is_away_is_announced_at_once_and_only_once(clock, config, outage):
    with Receiver() as receiver:
        given = {**config, "exporters": exporters(receiver.url, repeat_interval_s=None)}
        with aggregator(clock, **given) as running:
            fire(running, clock, outage, receiver)
            outage.clear()
            until(lambda: values(running.page())["perfd_history_up"] == 1.0)
        with aggregator(clock, **given) as running:
            feed(running, clock, [2, 3], "agent1", 9.0)
            [alert] = running.alerts()
        assert starts(receiver) == [alert["fired_at_unix_s"]]


def test_an_alert_that_no_history_took_fires_again_in_the_next_aggregator(clock, config, outage):
    with Receiver() as receiver:
        given = {**config, "exporters": exporters(receiver.url, repeat_interval_s=None)}
        with aggregator(clock, **given) as running:
            fire(running, clock, outage, receiver)
        outage.clear()
        with aggregator(clock, **given) as running:
            feed(running, clock, [2, 3], "agent1", 9.0)
            [alert] = running.alerts()
            until(lambda: len(starts(receiver)) == 2)
        first, second = starts(receiver)
        assert first < second == alert["fired_at_unix_s"]
