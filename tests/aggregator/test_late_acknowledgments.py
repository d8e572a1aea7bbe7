"""Agents that do not need each batch acknowledged at once."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from aggregator.support import aggregator, step

from perfd.agent.collection.batcher import Batcher
from perfd.agent.spool.spool import Spool
from perfd.agent.uplink.grpc_uplink import GrpcUplink
from perfd.aggregator import Aggregator
from perfd.aggregator.ingest import grpc_server, waiting_messages
from perfd.clock import SystemClock
from perfd.config import HistoryConfig, UplinkConfig
from perfd.model import AcknowledgeEach, Batch
from tests.support.fake_agent import FakeAgent

_NEVER_S = 3600.0


@pytest.fixture(params=["few agents", "many agents"], autouse=True)
def batches_wait_for_others(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "many agents":
        monkeypatch.setattr(waiting_messages, "FEWEST_AGENTS", 0)


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No acknowledgment because of time."""
    monkeypatch.setattr(grpc_server, "_LOOK_EVERY_S", _NEVER_S)


@pytest.fixture(params=["without history", "with history"])
def running(request: pytest.FixtureRequest, tmp_path: Path, no_looks: None) -> Iterator[Aggregator]:
    history = (
        HistoryConfig(path=str(tmp_path / "history")) if request.param == "with history" else HistoryConfig()
    )
    with aggregator(history=history) as made:
        yield made


def say(agent: FakeAgent, first: int, last: int) -> None:
    for sequence in range(first, last + 1):
        agent.say(Batch(sequence=sequence, sent_unix_ns=0, records=[step(sequence)]))


def test_so_many_batches_as_the_agent_says_or_more_have_one_acknowledgment(running: Aggregator) -> None:
    with FakeAgent(running.grpc_address) as agent:
        agent.hello(acknowledge_every=8)
        say(agent, 1, 24)
        acknowledged = [agent.acknowledged().sequence]
        while acknowledged[-1] <= 24 - 8:
            acknowledged.append(agent.acknowledged().sequence)
        assert all(late - early >= 8 for early, late in pairwise([0, *acknowledged]))


def test_an_agent_that_waits_has_each_batch_acknowledged_from_then_on(running: Aggregator) -> None:
    with FakeAgent(running.grpc_address) as agent:
        agent.hello(acknowledge_every=8)
        say(agent, 1, 3)
        agent.say(AcknowledgeEach())
        assert agent.wait_stored(3) == 3
        for sequence in (4, 5):
            assert agent.send(step(sequence), sequence=sequence) == sequence


def test_a_repeat_is_acknowledged_at_once(running: Aggregator) -> None:
    with FakeAgent(running.grpc_address) as agent:
        agent.hello()
        assert agent.send(step(1)) == 1
    with FakeAgent(running.grpc_address) as agent:
        assert agent.hello(acknowledge_every=8).received_sequence == 1
        say(agent, 1, 1)
        assert agent.acknowledged().sequence == 1


def test_no_batch_waits_for_others_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "_LOOK_EVERY_S", 0.02)
    with aggregator() as running, FakeAgent(running.grpc_address) as agent:
        agent.hello(acknowledge_every=8)
        assert agent.send(step(1)) == 1


def test_what_waits_is_taken_before_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "_LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(waiting_messages, "_WITHIN_S", _NEVER_S)
    with aggregator(round_interval_s=0.2) as running, FakeAgent(running.grpc_address) as agent:
        agent.hello(acknowledge_every=8)
        assert agent.send(step(1)) == 1


def test_an_agent_that_stops_does_not_wait_for_what_is_acknowledged_late(
    running: Aggregator, tmp_path: Path
) -> None:
    spool = Spool(tmp_path / "spool", max_bytes=1 << 20)
    uplink = GrpcUplink(
        UplinkConfig(address=running.grpc_address),
        node="n1",
        spool=spool,
        clock=SystemClock(),
        on_request=lambda _: None,
    )
    uplink.start()
    batcher = Batcher(spool)
    batcher.add([step(1)])
    sequence = batcher.flush(1)
    uplink.notify()
    uplink.stop(_NEVER_S)
    assert uplink.state.acknowledged_sequence == sequence
    spool.close()
