"""A server that leads the stream and brings nothing is named, and asked once to leave the lead to another."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from perfd.aggregator.ingest.jetstream import stream_watch
from perfd.aggregator.ingest.jetstream.nats_stream import Readers
from perfd.aggregator.ingest.jetstream.stream_watch import StreamWatch
from perfd.aggregator.limits import NatsProgress
from perfd.config import NatsListenConfig

ALONE = "a server in no cluster"


class Client:
    """Answers as servers of which one leads."""

    def __init__(self, *leaders: str | None) -> None:
        self._leaders = list(leaders)
        self.asked_to_leave = 0
        self.looks = 0
        self.looked = asyncio.Event()

    async def request(self, subject: str, _data: bytes, **_options: Any) -> Any:
        if "STEPDOWN" in subject:
            self.asked_to_leave += 1
            return SimpleNamespace(data=b"{}")
        self.looks += 1
        self.looked.set()
        leader = self._leaders.pop(0) if len(self._leaders) > 1 else self._leaders[0]
        if leader is None:
            raise TimeoutError
        if leader == ALONE:
            return SimpleNamespace(data=b"{}")
        return SimpleNamespace(data=json.dumps({"cluster": {"leader": leader}}).encode())


def watched(client: Client, progress: NatsProgress, looks: int) -> str | None:
    """The sentence after so many questions about the leader."""

    async def watching() -> str | None:
        readers = Readers(NatsListenConfig(servers=["nats://127.0.0.1:4222"]), "perfd.from.>", 0.0)
        watch = asyncio.create_task(StreamWatch(client, readers, progress).run())  # type: ignore[arg-type]
        while client.looks < looks:
            client.looked.clear()
            await client.looked.wait()
        sentence = progress.stream_problem
        watch.cancel()
        return sentence

    return asyncio.run(watching())


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_watch, "_LOOK_EVERY_S", 0.0)


def silent() -> NatsProgress:
    progress = NatsProgress(delivered_s=time.monotonic() - 100.0)
    progress.take_directly(1, time.monotonic() - 60.0)
    return progress


def test_the_server_that_leads_is_named_and_asked_once() -> None:
    client = Client("s1")
    sentence = watched(client, silent(), 6)
    assert sentence is not None
    assert "restart server s1" in sentence
    assert client.asked_to_leave == 1


def test_one_that_took_over_meanwhile_is_not_asked() -> None:
    client = Client("s1", "s1", "s2")
    assert "s2" in (watched(client, silent(), 6) or "")
    assert client.asked_to_leave == 0


def test_one_that_does_not_answer_is_the_one_that_led_before() -> None:
    client = Client("s1", None)
    assert "restart server s1" in (watched(client, silent(), 6) or "")


def test_of_a_server_that_is_alone_the_silence_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(ALONE)
    assert "restart the server that leads it" in (watched(client, silent(), 6) or "")
    assert [one.message for one in caplog.records] == [
        "NATS takes or delivers no messages; batches are taken from the agents directly."
    ]
    assert client.asked_to_leave == 0


def test_nothing_is_said_of_a_stream_that_brings_messages_or_has_none_to_bring() -> None:
    for progress in (NatsProgress(), NatsProgress(delivered_s=time.monotonic())):
        client = Client("s1")
        assert watched(client, progress, 1) is None
        assert client.asked_to_leave == 0
