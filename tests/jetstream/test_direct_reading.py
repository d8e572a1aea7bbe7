"""While the stream takes or delivers nothing, aggregators take batches from the agents themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jetstream.support import Node, aggregator, node, until

from perfd.aggregator import Aggregator
from perfd.aggregator.ingest.jetstream.direct_reading import DIRECT_ACKNOWLEDGMENT, DirectReading
from perfd.aggregator.ingest.jetstream.nats_intake import NatsIntake
from perfd.aggregator.limits import NatsProgress
from perfd.aggregator.partition import Partition
from perfd.config import AggregatorConfig, NatsGroupConfig, NatsListenConfig, RulesConfig
from perfd.model import Batch, JobOrigin, Record, TrainingStep
from perfd.wire import subjects
from tests.jetstream.test_sessions import History, Published, Receipt
from tests.support.group_members import PARTITIONS, Member
from tests.support.nats_server import NatsServer

FROM = subjects.from_agent("default", "j", "n0")


class Client:
    """Notes what is published and who subscribes."""

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes]] = []
        self.arrive: Callable[[Any], Awaitable[None]] | None = None
        self.changed = asyncio.Event()

    async def subscribe(self, _subject: str, cb: Callable[[Any], Awaitable[None]]) -> Any:
        async def unsubscribe() -> None:
            self.arrive = None
            self.changed.set()

        self.arrive = cb
        self.changed.set()
        return SimpleNamespace(unsubscribe=unsubscribe)

    async def publish(self, subject: str, data: bytes) -> None:
        self.published.append((subject, data))
        self.changed.set()

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            self.changed.clear()
            await self.changed.wait()

    def acknowledged(self) -> list[str]:
        return [subject for subject, data in self.published if data == DIRECT_ACKNOWLEDGMENT]


def test_batches_are_taken_while_the_stream_is_silent_and_acknowledged_once_stored() -> None:
    async def reading() -> None:
        client, history, progress = Client(), History(), NatsProgress()
        published = Published(history)
        intake = NatsIntake(client, published.sessions, progress, asyncio.Lock(), DIRECT_ACKNOWLEDGMENT)  # type: ignore[arg-type]
        began: list[int | None] = []

        def note() -> None:
            began.append(published.state.fleet.jobs["j"].steps.last_step)
            client.changed.set()

        direct = DirectReading(client, FROM, intake, progress, began=note)  # type: ignore[arg-type]
        run = asyncio.create_task(direct.run())
        await client.until(lambda: client.arrive is not None)
        batch = Batch(sequence=1, sent_unix_ns=0, records=[TrainingStep(job="j", step=1), JobOrigin(job="j")])
        assert client.arrive is not None
        await client.arrive(SimpleNamespace(subject=FROM, data=published.message(batch), reply="ack.1"))
        # Its agent was greeted.
        await client.until(lambda: bool(client.published))
        assert published.state.fleet.jobs["j"].steps.last_step == 1
        assert client.acknowledged() == []
        # The page need not wait for the next round.
        await client.until(lambda: began == [1])
        assert progress.undelivered_for_s(progress.took_directly_s + 5.0) == 5.0
        history.commit()
        await client.until(lambda: client.acknowledged() == ["ack.1"])
        # The stream delivers something again.
        progress.delivered_s = float("inf")
        await client.until(lambda: client.arrive is None)
        assert progress.undelivered_for_s(progress.took_directly_s + 5.0) == 0.0
        run.cancel()

    asyncio.run(reading())


def test_batches_that_the_stream_delivers_after_later_ones_came_directly_are_stored() -> None:
    history = History()
    published = Published(history)

    def direct(sequence: int, *more: Record) -> Receipt:
        records = [*more, TrainingStep(job="j", step=sequence)]
        batch = Batch(sequence=sequence, sent_unix_ns=0, records=records)
        return published.sessions.take(FROM, published.message(batch, first=sequence), direct=True)

    # Without its origin it would have other labels, and so would its alerts.
    assert direct(20).kept_for_later
    later = [direct(20, JobOrigin(job="j", cluster="c")), direct(21)]
    earlier = [published.batch(sequence) for sequence in (17, 18, 19)]
    assert not any(one.settled for one in earlier)
    history.commit()
    assert all(one.stored and one.settled for one in (*later, *earlier))
    assert list(published.state.fleet.jobs["j"].steps.table().step) == [17, 18, 19, 20, 21]
    # What came directly is delivered by the stream, too.
    repeated = published.batch(20)
    assert repeated.settled
    assert published.state.counters.resent_batches == 0
    published.batch(20, again=True)
    assert published.state.counters.resent_batches == 1
    history.commit()
    assert not history.pending


def test_what_waits_in_the_stream_of_an_agent_that_history_knows_is_stored_after_a_later_one() -> None:
    history = History()
    published = Published(history)
    published.state.agents.restore("a", "n0", 15, 0.0)

    def direct(sequence: int) -> Receipt:
        records = [JobOrigin(job="j"), TrainingStep(job="j", step=sequence)]
        batch = Batch(sequence=sequence, sent_unix_ns=0, records=records)
        return published.sessions.take(FROM, published.message(batch, first=sequence), direct=True)

    later = direct(20)
    # Numbers that history has are not trusted either, as one of them may be damaged.
    waiting = [published.batch(sequence) for sequence in range(13, 20)]
    history.commit()
    assert all(one.stored for one in (later, *waiting))


@pytest.mark.system
def test_a_stream_that_takes_nothing_is_not_noticed(tmp_path: Path) -> None:
    """As while a stream has no leader, which cannot be had on purpose."""

    async def moved_away(js: Any) -> None:
        config = (await js.stream_info("perfd")).config
        config.subjects = ["elsewhere.>"]
        await js.update_stream(config)

    async def back(js: Any) -> None:
        config = (await js.stream_info("perfd")).config
        config.subjects = ["perfd.from.>"]
        await js.update_stream(config)

    history = {"path": str(tmp_path / "history.sqlite")}
    rules = {"builtin": False, "files": []}
    with (
        NatsServer(tmp_path) as server,
        Member(tmp_path, [server.address], "m0", history=history, rules=rules) as member,
    ):
        node = Node(tmp_path / "n0", server.address, partitions=PARTITIONS)
        node.uplink.start()
        try:
            last = node.produce(3)
            assert until(lambda: member.newest_step(node.job) == last)
            server.ask(moved_away)
            last = node.produce(3)
            assert until(lambda: member.newest_step(node.job) == last)
            # What is stored leaves the spool.
            assert until(lambda: node.spool.stats().batches == 0)
            server.ask(back)
            last = node.produce(3)
            assert until(lambda: member.newest_step(node.job) == last)
            assert until(lambda: node.spool.stats().batches == 0)
        finally:
            node.close(0.0)


@pytest.mark.system
def test_a_connection_without_a_lease_is_kept_for_what_agents_publish(tmp_path: Path) -> None:
    """As after the loss of the server that leads the leases, until they can be renewed."""
    with NatsServer(tmp_path) as server, aggregator(None, server.address) as creating:
        # The stream exists; nothing is read of it.
        assert until(lambda: creating._nats is not None and creating._nats.progress.reading)
    with server:
        nats = NatsListenConfig(servers=[server.address], group=NatsGroupConfig(partitions=1))
        config = AggregatorConfig(http_listen=None, rules=RulesConfig(builtin=False), nats=nats)
        partition = Partition(number=0, count=1, epoch=1, held=lambda: False, serves=lambda: True)
        with node(tmp_path / "n0", server.address, partitions=1) as one:
            # It has its connection, and the stream what it published.
            last = one.produce(3)
            assert until(lambda: one.uplink.state.acknowledged_sequence == last)
            running = Aggregator(config, manual=True, partition=partition)
            running.start()

            def through_one_connection() -> bool:
                """Whether 20 batches come before the aggregator, or anything else, connects again."""
                connections, first = server.get("/varz")["total_connections"], running.state.counters.batches
                while running.state.counters.batches < first + 20:
                    # As agents say it again and again: without it no batch begins a job before those missing.
                    one.produce(1, JobOrigin(job=one.job))
                    time.sleep(0.2)
                    if server.get("/varz")["total_connections"] != connections:
                        return False
                return True

            try:
                assert until(through_one_connection)
            finally:
                running.stop()
