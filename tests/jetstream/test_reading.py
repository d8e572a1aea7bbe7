"""Reading from a consumer, with a client that answers as servers do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from perfd.aggregator.ingest.jetstream import nats_reading
from perfd.aggregator.ingest.jetstream.nats_intake import NatsIntake
from perfd.aggregator.ingest.jetstream.nats_reading import STREAM_ACKNOWLEDGMENT, NatsReading
from perfd.aggregator.limits import NatsProgress
from perfd.config import NatsListenConfig
from tests.jetstream.test_sessions import Published


class Client:
    """Takes what is published, and gives a test the callback of the subscription."""

    max_payload = 1 << 20

    def __init__(self) -> None:
        self.pulls = 0
        self.kept: list[tuple[str, bytes, dict[str, str]]] = []
        self.keeps = asyncio.Event()
        self.subscribed: asyncio.Future[Callable[[Any], Awaitable[None]]] = asyncio.Future()

    def new_inbox(self) -> str:
        return "_INBOX.test"

    async def subscribe(self, _subject: str, cb: Callable[[Any], Awaitable[None]]) -> None:
        self.subscribed.set_result(cb)

    async def publish(self, subject: str, _data: bytes, reply: str = "") -> None:
        del reply
        self.pulls += subject.startswith("$JS.API.CONSUMER.MSG.NEXT.")

    def jetstream(self) -> Any:
        async def publish(subject: str, data: bytes, headers: dict[str, str]) -> None:
            self.kept.append((subject, data, headers))
            self.keeps.set()

        return SimpleNamespace(publish=publish)


def intake(client: Client) -> NatsIntake:
    """What a reading takes messages with."""
    sessions = Published(None).sessions
    return NatsIntake(client, sessions, NatsProgress(), asyncio.Lock(), STREAM_ACKNOWLEDGMENT)  # type: ignore[arg-type]


def status(code: str, description: str) -> Any:
    return SimpleNamespace(headers={"Status": code, "Description": description}, data=b"")


def message(subject: str, data: bytes) -> Any:
    reply = "$JS.ACK.perfd.c.1.1.1.1700000000000000000.0"
    return SimpleNamespace(headers=None, data=data, subject=subject, reply=reply)


async def read(*arriving: Any) -> tuple[str, Client]:
    """Why reading ended once the consumer was deleted, after these arrived."""
    client = Client()
    config = NatsListenConfig(servers=["nats://127.0.0.1:4222"])
    reading = NatsReading(client, config, "c", intake(client), caught_up=lambda: None)  # type: ignore[arg-type]
    run = asyncio.create_task(reading.run())
    arrive = await client.subscribed
    for one in arriving:
        await arrive(one)
        if one.data:
            await client.keeps.wait()
    await arrive(status("409", "Consumer Deleted"))
    return await run, client


@pytest.mark.parametrize(
    ("code", "description"),
    [("409", "Batch Completed"), ("409", "Message Size Exceeds MaxBytes"), ("100", "Idle Heartbeat")],
)
def test_the_end_of_a_pull_is_not_the_end_of_reading(code: str, description: str) -> None:
    """Servers since 2.10 say that a pull with a limit of bytes is completed."""
    reason, _ = asyncio.run(read(status(code, description)))
    assert reason == "the stream is no longer read through this consumer: 409 Consumer Deleted"


def test_a_server_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_reading, "_SILENT_FOR_S", 0.0)

    async def reading() -> str:
        config = NatsListenConfig(servers=["nats://127.0.0.1:4222"])
        client = Client()
        return await NatsReading(client, config, "c", intake(client), caught_up=lambda: None).run()  # type: ignore[arg-type]

    assert asyncio.run(reading()) == "NATS does not answer."


def test_a_round_is_due_once_what_waited_has_been_taken() -> None:
    async def reading() -> int:
        client, calls = Client(), list[None]()
        config = NatsListenConfig(servers=["nats://127.0.0.1:4222"])
        one = NatsReading(client, config, "c", intake(client), caught_up=lambda: calls.append(None))  # type: ignore[arg-type]
        run = asyncio.create_task(one.run())
        arrive = await client.subscribed
        for _ in range(3):
            await arrive(message("perfd.from.default.j.n0", b"\xff"))
            await client.keeps.wait()
            client.keeps.clear()
        await arrive(status("409", "Consumer Deleted"))
        await run
        return len(calls)

    assert asyncio.run(reading()) == 1


def test_a_message_that_is_as_large_as_may_be_is_set_aside_cut_with_its_reason() -> None:
    garbage = message("perfd.from.default.j.n0", b"\xff" * Client.max_payload)

    _, client = asyncio.run(read(garbage))
    ((subject, data, headers),) = client.kept
    assert subject == "perfd.refused.default.j.n0"
    length = len(data) + sum(len(name) + len(value) for name, value in headers.items())
    assert length < Client.max_payload
    assert headers["Perfd-Reason"].isascii()
