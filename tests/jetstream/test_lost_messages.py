"""What a stream acknowledged and lost is published again, by agents that keep it until it is stored."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from jetstream.support import WAIT_S, Node, aggregator, node, stored_steps, until

from perfd.agent.uplink import unstored_batches
from tests.support.nats_server import NatsServer

pytestmark = pytest.mark.system


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds instead of minutes."""
    for name in ("_AGAIN_AFTER_S", "_NEWEST_AGAIN_AFTER_S", "_OTHERS_AGAIN_AFTER_S"):
        monkeypatch.setattr(unstored_batches, name, getattr(unstored_batches, name) / 30)


def waiting_messages(server: NatsServer) -> int:
    return int(server.ask(lambda js: js.stream_info("perfd")).state.messages)


def lose_all(server: NatsServer) -> None:
    """Have the stream forget its messages, as servers do whose copies differ."""

    async def purge(js: Any) -> None:
        await js.purge_stream("perfd")

    server.ask(purge)


def made(server: NatsServer, history: Path) -> None:
    """An aggregator made the stream, and stopped."""
    with aggregator(history, server.address) as running:
        assert until(lambda: running.handlers and _exists(server))


def _exists(server: NatsServer) -> bool:
    async def streams(js: Any) -> list[Any]:
        return list(await js.streams_info())

    return any(one.config.name == "perfd" for one in server.ask(streams))


def test_batches_that_the_stream_lost_are_stored_and_then_leave_the_spool(tmp_path: Path) -> None:
    history = tmp_path / "history.sqlite"
    with NatsServer(tmp_path) as server:
        made(server, history)
        with node(tmp_path / "spool", server.address) as agent:
            first = agent.produce(20)
            assert agent.uplink.wait_acknowledged(first, WAIT_S)
            assert agent.spool.stats().batches == 20
            lose_all(server)
            with aggregator(history, server.address) as running:
                last = agent.produce(5)
                assert until(lambda: stored_steps(history, agent.job) == list(range(1, last + 1)))
                assert until(lambda: agent.spool.stats().batches == 0)
                assert until(lambda: waiting_messages(server) == 0)
                assert running.state.agents.connected() == 1


def test_they_are_stored_also_where_both_sides_were_restarted(tmp_path: Path) -> None:
    """The next aggregator knows only the highest number that is stored, below which some are missing."""
    history = tmp_path / "history.sqlite"
    with NatsServer(tmp_path) as server:
        made(server, history)
        agent = Node(tmp_path / "spool", server.address)
        agent.uplink.start()
        first = agent.produce(20)
        assert agent.uplink.wait_acknowledged(first, WAIT_S)
        lose_all(server)
        with aggregator(history, server.address):
            last = agent.produce(5)
            assert until(lambda: last in stored_steps(history, agent.job))
            # The agent and the aggregator end before anything is published again.
            agent.close(0.0)
        with aggregator(history, server.address), node(tmp_path / "spool", server.address) as agent:
            assert until(lambda: stored_steps(history, agent.job) == list(range(1, last + 1)))
            assert until(lambda: agent.spool.stats().batches == 0)


def test_the_last_batch_is_not_lost_either(tmp_path: Path) -> None:
    history = tmp_path / "history.sqlite"
    with NatsServer(tmp_path) as server:
        made(server, history)
        with node(tmp_path / "spool", server.address) as agent:
            last = agent.produce(3)
            assert agent.uplink.wait_acknowledged(last, WAIT_S)
            lose_all(server)
            with aggregator(history, server.address):
                assert until(lambda: stored_steps(history, agent.job) == [1, 2, 3])


def test_a_spool_that_fills_keeps_only_what_the_stream_does_not_have(tmp_path: Path) -> None:
    history = tmp_path / "history.sqlite"
    with NatsServer(tmp_path) as server:
        made(server, history)
        with node(tmp_path / "spool", server.address, max_bytes=20_000) as agent:
            for _ in range(10):
                assert agent.uplink.wait_acknowledged(agent.produce(200), WAIT_S)
            stats = agent.spool.stats()
            assert stats.payload_bytes <= 10_000
            assert stats.dropped_batches == 0


def test_a_copy_of_the_spool_repeats_what_is_stored_without_doubling_it(tmp_path: Path) -> None:
    history, spool, copy = tmp_path / "history.sqlite", tmp_path / "spool", tmp_path / "copy"
    with NatsServer(tmp_path) as server, aggregator(history, server.address):
        agent = Node(spool, server.address)
        last = agent.produce(30)
        agent.spool.close()
        shutil.copytree(spool, copy)
        for _ in range(2):
            shutil.rmtree(spool)
            shutil.copytree(copy, spool)
            with node(spool, server.address) as again:
                assert until(lambda: again.spool.stats().batches == 0)
            assert stored_steps(history, agent.job) == list(range(1, last + 1))
