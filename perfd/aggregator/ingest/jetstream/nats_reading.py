"""Pulls messages through one consumer, and has them taken."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from perfd.aggregator.ingest.jetstream.nats_intake import NatsIntake
from perfd.config import NatsListenConfig

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

_PULL_MESSAGES = 256
"""That one request asks for at most."""
_PULL_BYTES = 16 << 20
"""That one request asks for at most: they are in memory at a time."""
_PULL_FOR_S = 3.0
"""How long the server holds a request for which there is no message."""
_HEARTBEAT_S = 1.0
"""How often the server says that it still holds a request, where there is no message."""
_SILENT_FOR_S = 3.0
"""A server that says nothing for so long is gone, or no longer leads the consumer."""
_LOOK_EVERY_S = 0.1
"""How soon what was stored meanwhile is acknowledged while no message comes."""
STREAM_ACKNOWLEDGMENT = b"+ACK"
"""What the stream forgets a message by."""
_STATUS, _DESCRIPTION = "Status", "Description"
_HELD = "100"
"""Status of a heartbeat."""
_ENDED = {"404", "408"}
"""Statuses of a pull that has no more messages."""
_TOO_LARGE = "MaxBytes"
_COMPLETED = "Batch Completed"
_PENDING_TOKEN, _TIME_TOKEN, _TOKENS = -1, -2, 9
"""In `$JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE.SEQUENCE.TIME_NS.PENDING`, counted from its end."""


class NatsReading:
    """Reads until the consumer is gone, or has to begin anew."""

    def __init__(
        self,
        client: Client,
        config: NatsListenConfig,
        consumer: str,
        intake: NatsIntake,
        *,
        caught_up: Callable[[], None],
    ) -> None:
        """`caught_up` is called once, when all messages that waited have been taken."""
        self._caught_up: Callable[[], None] | None = caught_up
        self._client = client
        self._config = config
        self._intake = intake
        self._sessions = intake.sessions
        self._progress = intake.progress
        self._pull_subject = f"$JS.API.CONSUMER.MSG.NEXT.{config.stream}.{consumer}"
        self._inbox = client.new_inbox()
        self._arrived: deque[Msg] = deque()
        self._something = asyncio.Event()
        self._asked = 0
        """Messages that the present pull may still deliver."""
        self._pull_bytes = _PULL_BYTES
        self._pulled = 0
        self._received_s = 0.0
        """When the server answered last, or was asked."""
        self._over: str | None = None

    async def run(self) -> str:
        """Read; returns why it ended, empty if what is not stored has to be delivered again."""
        self._sessions.begin_anew()
        answers = await self._client.subscribe(self._inbox, cb=self._arrive)
        self._progress.reading = True
        try:
            return await self._read()
        finally:
            # What is stored by now need not be delivered again.
            with contextlib.suppress(Exception):
                await self._settle()
                await answers.unsubscribe()

    async def _read(self) -> str:
        look_s = time.monotonic()
        while self._over is None:
            if self._asked <= 0:
                await self._pull()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._something.wait()
            self._something.clear()
            await self._take_all()
            await self._settle()
            if time.monotonic() >= look_s:
                look_s = time.monotonic() + 1.0
                if self._sessions.unkept:
                    return ""
                self._look()
        return self._over

    def _look(self) -> None:
        if self._asked > 0 and time.monotonic() - self._received_s > _SILENT_FOR_S:
            self._over = "NATS does not answer."
        elif self._progress.waiting_messages:
            self._sessions.begin_listening()
        else:
            self._sessions.close_silent()

    async def _pull(self) -> None:
        batch = _PULL_MESSAGES if self._pull_bytes else 1
        request = {
            "batch": batch,
            "expires": int(_PULL_FOR_S * 1e9),
            "idle_heartbeat": int(_HEARTBEAT_S * 1e9),
        }
        if self._pull_bytes:
            request["max_bytes"] = self._pull_bytes
        self._asked, self._pulled = batch, 0
        self._received_s = time.monotonic()
        await self._client.publish(self._pull_subject, json.dumps(request).encode(), reply=self._inbox)

    async def _arrive(self, message: Msg) -> None:
        self._received_s = time.monotonic()
        status = (message.headers or {}).get(_STATUS) if not message.data else None
        if status == _HELD:
            return
        if status is None:
            self._asked -= 1
            self._pulled += 1
            self._pull_bytes = self._pull_bytes or _PULL_BYTES
            self._arrived.append(message)
        elif status in _ENDED:
            self._asked = 0
            if status == "408":
                self._progress.waiting_messages = 0
        else:
            description = (message.headers or {}).get(_DESCRIPTION, "")
            if _TOO_LARGE in description:
                self._asked = 0
                # One message alone is larger: it is pulled without that limit.
                self._pull_bytes = _PULL_BYTES if self._pulled else 0
            elif _COMPLETED in description:
                # The end of a full pull, of NATS 2.10 and later; its messages are counted already.
                pass
            else:
                self._over = f"the stream is no longer read through this consumer: {status} {description}"
        self._something.set()

    async def _take_all(self) -> None:
        messages = list(self._arrived)
        self._arrived.clear()
        if not messages:
            return
        self._progress.delivered_s = time.monotonic()
        await self._intake.take(messages)
        self._note(messages)
        if self._caught_up is not None and not self._progress.waiting_messages:
            self._caught_up()
            self._caught_up = None

    def _note(self, messages: Sequence[Msg]) -> None:
        progress = self._progress
        progress.received_messages += len(messages)
        tokens = messages[-1].reply.split(".")
        if len(tokens) >= _TOKENS:
            progress.waiting_messages = int(tokens[_PENDING_TOKEN])
            progress.lag_s = max(0.0, time.time() - int(tokens[_TIME_TOKEN]) / 1e9)

    async def _settle(self) -> None:
        await self._intake.settle()
        self._progress.unsettled_messages = self._intake.unsettled_messages
