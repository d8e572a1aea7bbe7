"""What is published, and published again, with a client that answers as servers do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from perfd.agent.uplink.nats_publisher import NatsPublisher, new_session
from perfd.config import NatsUplinkConfig
from perfd.model import Hello

STORED = b'{"stream": "perfd", "seq": 1}'


class Client:
    """Remembers where each message is to be answered."""

    max_payload = 2 << 20

    def __init__(self) -> None:
        self.replies: list[str] = []
        self.receive: Callable[[Any], Awaitable[None]] | None = None

    async def subscribe(self, _subject: str, cb: Callable[[Any], Awaitable[None]]) -> Any:
        self.receive = cb
        return SimpleNamespace(unsubscribe=None)

    async def publish(self, _subject: str, _data: bytes, reply: str, headers: object) -> None:
        del headers
        self.replies.append(reply)

    async def answer(self, place: int, data: bytes = STORED, status: str | None = None) -> None:
        """Answer the message that was published at this place."""
        assert self.receive is not None
        headers = None if status is None else {"Status": status}
        await self.receive(SimpleNamespace(subject=self.replies[place], data=data, headers=headers))


async def listening(client: Client, acknowledged: list[int], **options: Any) -> NatsPublisher:
    publisher = NatsPublisher(
        client,  # type: ignore[arg-type]
        NatsUplinkConfig(servers=["nats://127.0.0.1:4222"]),
        new_session("c", "n0"),
        node="n0",
        job="llm",
        routes=None,
        hello=lambda first: Hello(
            agent_id="a", node="n0", perfd_version="1", first_sequence=first, sent_unix_ns=0
        ),
        received=lambda _: None,
        acknowledged=acknowledged.append,
        first_sequence=1,
        **options,
    )
    await publisher.listen()
    return publisher


async def publish(publisher: NatsPublisher, *sequences: int) -> None:
    for sequence in sequences:
        assert await publisher.publish_batch(b"", sequence, 0)


def test_what_no_server_took_is_published_again_on_the_same_connection() -> None:
    async def publishing() -> None:
        client, acknowledged = Client(), list[int]()
        publisher = await listening(client, acknowledged, leaderless_for_s=60.0)
        await publish(publisher, 1, 2, 3)
        await client.answer(0)
        await client.answer(1, b"", "503")
        assert publisher.refused
        assert not publisher.ended.done()

        publisher.begin_again()
        assert (publisher.refused, publisher.waiting_messages, publisher.sent_sequence) == (False, 0, 1)
        await publish(publisher, 2, 3)
        # A late answer to what was published first is none to what was published again.
        await client.answer(2)
        assert acknowledged[-1] == 1
        await client.answer(3)
        await client.answer(4)
        assert acknowledged[-1] == 3

    asyncio.run(publishing())


def test_a_session_without_a_stream_ends_with_the_reason() -> None:
    async def publishing() -> None:
        client = Client()
        publisher = await listening(client, [])
        await publish(publisher, 1)
        await client.answer(0, b"", "503")
        assert "no stream takes" in publisher.ended.result()

    asyncio.run(publishing())


def test_a_lost_message_is_overdue_while_later_ones_are_acknowledged() -> None:
    async def publishing() -> None:
        client = Client()
        publisher = await listening(client, [])
        await publish(publisher, 1)
        since_s = publisher.due_again_s
        await asyncio.sleep(0.001)
        await publish(publisher, 2, 3)
        await client.answer(1)
        assert publisher.due_again_s == since_s
        await client.answer(0)
        assert publisher.due_again_s > since_s

    asyncio.run(publishing())


def test_what_no_server_acknowledges_is_due_again_after_longer_and_longer() -> None:
    async def publishing() -> None:
        client, acknowledged = Client(), list[int]()
        publisher = await listening(client, acknowledged)
        waits_s = []
        await publish(publisher, 1)
        began_s = publisher.silent_since_s
        for _ in range(3):
            waits_s.append(round(publisher.due_again_s - asyncio.get_running_loop().time()))
            publisher.begin_again()
            await publish(publisher, 1)
        assert waits_s == [1, 2, 4]
        # The connection is of no use for as long as there is no answer.
        assert publisher.silent_since_s == began_s
        await client.answer(3)
        assert acknowledged[-1] == 1
        await publish(publisher, 2)
        assert publisher.silent_since_s > began_s
        assert round(publisher.due_again_s - asyncio.get_running_loop().time()) == 1

    asyncio.run(publishing())
