"""One connection after another: how long the waits between them are, with a client that always connects."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from perfd.config import NatsConfig
from perfd.errors import PerfdError
from perfd.net import NatsConnector
from tests.support.nats_server import NatsServer
from tests.support.services import free_port


class Client:
    """Knows whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    async def close(self) -> None:
        self.closed = True


class Connector(NatsConnector):
    """Gives clients that need no server."""

    def __init__(self) -> None:
        super().__init__(NatsConfig(servers=["nats://127.0.0.1:1"]), key="nats", name="test")
        self.clients: list[Client] = []

    async def connect(self, **_: Any) -> Any:
        self.clients.append(Client())
        return self.clients[-1]


@pytest.fixture
def waits_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What would be waited between connections; nothing is."""
    found: list[float] = []
    sleep, own_thread = asyncio.sleep, threading.get_ident()

    async def note(seconds: float) -> None:
        if threading.get_ident() != own_thread:
            # A connection of an earlier test may still close in its own thread.
            await sleep(seconds)
            return
        found.append(seconds)
        await sleep(0)

    monkeypatch.setattr("random.random", lambda: 1.0)
    monkeypatch.setattr("asyncio.sleep", note)
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]), ({"last_retry_s": 0.5}, [0.5] * 7)],
)
def test_waits_grow_also_where_each_connection_is_of_no_use(
    waits_s: list[float], options: dict[str, float], expected: list[float]
) -> None:
    connector = Connector()
    reasons: list[str] = []

    async def use(_client: object) -> None:
        if len(connector.clients) <= len(expected):
            raise PerfdError("The stream may lose batches.")

    asyncio.run(connector.keep_connected("inbox", use, reasons.append, **options))

    assert waits_s == expected
    assert reasons == ["The stream may lose batches."] * len(expected)
    assert all(client.closed for client in connector.clients)


def test_a_server_that_did_not_answer_is_tried_last(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = [f"nats://127.0.0.1:{port}" for port in (1, 2, 3)]
    connector = NatsConnector(NatsConfig(servers=servers), key="nats", name="test")
    tried: list[str] = []

    async def connect(_: object, server: str, _within_s: float, **_options: object) -> Client:
        tried.append(server)
        if server == servers[0]:
            raise PerfdError("It does not answer.")
        return Client()

    monkeypatch.setattr(NatsConnector, "_connect", connect)
    monkeypatch.setattr("random.sample", lambda found, _count: list(found))

    async def connecting() -> None:
        for _ in range(2):
            await connector.connect(inbox="inbox", ended=lambda _reason: None)

    asyncio.run(connecting())
    assert tried == [servers[0], servers[1], servers[1]]


def test_what_a_cancellation_ends_has_its_connection_until_it_is_done() -> None:
    connector = Connector()
    open_at_end: list[bool] = []

    async def keep() -> None:
        begun = asyncio.Event()

        async def use(client: Any) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                open_at_end.append(not client.closed)

        task = asyncio.create_task(connector.keep_connected("inbox", use, lambda _reason: None))
        await begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(keep())

    assert open_at_end == [True]
    assert connector.clients[0].closed


@pytest.mark.system
def test_a_server_that_is_gone_does_not_end_the_connection_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.sample", lambda servers, _count: list(servers))

    async def connecting(address: str) -> list[str]:
        gone = f"nats://127.0.0.1:{free_port()}"
        connector = NatsConnector(NatsConfig(servers=[gone, address]), key="nats", name="test")
        reasons: list[str] = []
        client = await connector.connect(inbox="_INBOX_test", ended=reasons.append)
        await client.flush()
        found = list(reasons)
        await client.close()
        return found

    with NatsServer(tmp_path) as server:
        assert asyncio.run(connecting(server.address)) == []
