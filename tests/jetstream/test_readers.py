"""Servers that keep a removed consumer, or deliver nothing, as a nats-server 2.9 that was killed."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from perfd.aggregator.ingest.jetstream import nats_stream
from perfd.aggregator.ingest.jetstream.nats_stream import Readers
from perfd.config import NatsListenConfig

pytestmark = pytest.mark.system

NOT_UNIQUE = 10100
SUBJECT = "perfd.from.default.1/6.*"


class Servers:
    """The client of servers that keep a consumer which is removed while `away` is true."""

    def __init__(self) -> None:
        self.listed: set[str] = set()
        self.kept: set[str] = set()
        self.away = False
        self.asked: list[str] = []
        self.stored: dict[str, bytes] | None = {}
        self.messages = self.arriving = 0
        """In the stream, and how many come between two looks at it."""

    def jetstream(self, **_: Any) -> Servers:
        return self

    async def request(self, subject: str, data: bytes, **_: Any) -> Any:
        self.asked.append(subject)
        if "CONSUMER.NAMES" in subject:
            names = sorted(self.listed)[json.loads(data)["offset"] :]
            return SimpleNamespace(data=json.dumps({"consumers": names, "total": len(self.listed)}).encode())
        if "STREAM.INFO" in subject:
            assert json.loads(data) == {"subjects_filter": SUBJECT}
            self.messages += self.arriving
            stored = {"subjects": {"perfd.from.default.1/6.n0": self.messages}}
            return SimpleNamespace(data=json.dumps({"state": stored}).encode())
        return SimpleNamespace(data=b"{}")

    async def add_consumer(self, _stream: str, config: Any) -> None:
        from nats.js.errors import BadRequestError  # noqa: PLC0415  (with the extra only)

        name = config.durable_name
        assert config.filter_subject == SUBJECT
        if name not in self.kept and (self.listed | self.kept) - {name}:
            raise BadRequestError(code=400, err_code=NOT_UNIQUE, description="not unique")
        self.kept.discard(name)
        self.listed.add(name)

    async def delete_consumer(self, _stream: str, name: str) -> None:
        from nats.js.errors import NotFoundError  # noqa: PLC0415  (with the extra only)

        if name not in self.listed:
            raise NotFoundError(code=404)
        self.listed.remove(name)
        if self.away:
            self.kept.add(name)

    async def key_value(self, bucket: str) -> Any:
        from nats.js.errors import BucketNotFoundError, KeyNotFoundError  # noqa: PLC0415

        assert bucket == "perfd-default-unstored"
        stored = self.stored
        if stored is None:
            raise BucketNotFoundError

        async def put(key: str, value: bytes) -> None:
            stored[key] = value

        async def get(key: str) -> Any:
            if key not in stored:
                raise KeyNotFoundError
            return SimpleNamespace(value=stored[key])

        return SimpleNamespace(put=put, get=get)


def reader() -> Readers:
    return Readers(NatsListenConfig(servers=("nats://127.0.0.1:1",)), SUBJECT, 0.0, name="1of6")


def opened(servers: Servers, readers: Readers, attempts: int) -> str | None:
    """The consumer after at most so many attempts, as a receiver makes them; None without."""
    from nats.js.errors import BadRequestError  # noqa: PLC0415  (with the extra only)

    for _ in range(attempts):
        try:
            return asyncio.run(readers.open(servers))  # type: ignore[arg-type]
        except BadRequestError:
            continue
    return None


@pytest.mark.parametrize("restarted", [False, True])
def test_a_consumer_that_servers_kept_is_removed_by_its_name(restarted: bool) -> None:
    servers = Servers()
    first = opened(servers, reader(), 1)
    servers.away = True
    second = reader()
    assert opened(servers, second, 1) is None
    assert servers.kept == {first}
    servers.away = False
    # Also by an aggregator that has not seen the name.
    taken = opened(servers, reader() if restarted else second, 3)
    assert servers.listed == {taken}
    assert not servers.kept
    assert not any("STEPDOWN" in subject for subject in servers.asked)


def test_a_consumer_that_servers_kept_of_a_reader_that_stopped_is_removed_by_the_next_one() -> None:
    servers = Servers()
    first = reader()
    assert opened(servers, first, 1) is not None
    servers.away = True
    asyncio.run(first.close(servers))  # type: ignore[arg-type]
    servers.away = False
    assert opened(servers, reader(), 3) is not None
    assert not servers.kept


def test_a_consumer_that_servers_kept_of_a_reader_that_was_killed_is_removed_by_the_next_one() -> None:
    servers = Servers()
    first = opened(servers, reader(), 1)
    assert first is not None
    # The server that led the list was killed as well.
    servers.listed.remove(first)
    servers.kept.add(first)
    assert opened(servers, reader(), 4) is not None
    assert not servers.kept


def test_consumers_that_several_earlier_readers_removed_are_known() -> None:
    servers = Servers()
    names = [opened(servers, reader(), 1) for _ in range(4)]
    servers.kept = {name for name in names[:3] if name is not None}
    # One of them with each attempt from the second on.
    assert opened(servers, reader(), 3) is None
    assert opened(servers, reader(), 5) is not None
    assert not servers.kept


def test_another_server_leads_the_stream_where_the_name_is_not_known() -> None:
    servers = Servers()
    servers.stored = None
    servers.kept = {"perfd-default-1of6-unknown"}
    assert opened(servers, reader(), 2) is None
    assert not any("STEPDOWN" in subject for subject in servers.asked)
    assert opened(servers, reader(), 3) is None
    assert sum("STEPDOWN" in subject for subject in servers.asked) == 1


@pytest.mark.parametrize(
    ("arriving", "delivered", "steps_down"), [(3, 0, True), (3, 1, False), (0, 0, False)]
)
def test_another_server_leads_a_consumer_that_delivers_nothing(
    arriving: int, delivered: int, steps_down: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_stream, "_UNDELIVERED_FOR_S", 0.0)
    servers, readers = Servers(), reader()
    consumer = opened(servers, readers, 1)
    servers.arriving = arriving
    received = 0

    def so_far() -> int:
        nonlocal received
        received += delivered
        return received

    async def watched() -> None:
        watching = asyncio.create_task(readers.watch(servers, so_far))  # type: ignore[arg-type]
        for _ in range(100):
            await asyncio.sleep(0)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(watched())
    assert (f"$JS.API.CONSUMER.LEADER.STEPDOWN.perfd.{consumer}" in servers.asked) is steps_down
