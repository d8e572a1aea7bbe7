"""Takes what agents publish without the stream, while the stream delivers nothing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from perfd.aggregator.ingest.jetstream.nats_intake import NatsIntake
from perfd.aggregator.limits import NatsProgress

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

SILENT_FOR_S = 1.2
"""Without a message through the stream, although agents publish one a second; servers elect for 4 to 9 s."""
_LOOK_EVERY_S = 0.1
"""How soon silence is noticed, and what was stored meanwhile is acknowledged."""
DIRECT_ACKNOWLEDGMENT = b'{"stored":true}'
"""What an agent gets instead of the stream's acknowledgment."""


class DirectReading:
    """Subscribes, as the stream does, to what agents publish, from the stream's silence to its next message.

    A message is acknowledged to its agent once history has it. Numbers drop those that the stream has, too.
    """

    def __init__(
        self,
        client: Client,
        subject: str,
        intake: NatsIntake,
        progress: NatsProgress,
        *,
        began: Callable[[], None] = lambda: None,
    ) -> None:
        """`began` is called when the first messages of a silence are taken."""
        self._began = began
        self._is_first = False
        self._client = client
        self._subject = subject
        self._intake = intake
        self._progress = progress
        self._arrived: deque[Msg] = deque()
        self._something = asyncio.Event()
        self._subscription: Subscription | None = None

    async def run(self) -> None:
        """Watch until canceled."""
        while True:
            await self._follow(silent=time.monotonic() - self._progress.delivered_s > SILENT_FOR_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._something.wait()
            self._something.clear()
            if self._arrived:
                await self._take()
            if self._intake.unsettled_messages:
                await self._intake.settle()

    def _pause_s(self) -> float:
        """Until the stream may be silent, where nothing else is to do."""
        if self._subscription is not None or self._intake.unsettled_messages:
            return _LOOK_EVERY_S
        left_s = self._progress.delivered_s + SILENT_FOR_S - time.monotonic()
        return min(max(_LOOK_EVERY_S, left_s), SILENT_FOR_S)

    async def _follow(self, *, silent: bool) -> None:
        if silent and self._subscription is None:
            # What history had no room for was published again since, to the stream.
            self._intake.forget_unsettled()
            self._is_first = True
            self._subscription = await self._client.subscribe(self._subject, cb=self._arrive)
        elif not silent and self._subscription is not None:
            await self._subscription.unsubscribe()
            self._subscription = None

    async def _arrive(self, message: Msg) -> None:
        self._arrived.append(message)
        self._something.set()

    async def _take(self) -> None:
        messages = list(self._arrived)
        self._arrived.clear()
        self._progress.take_directly(len(messages), time.monotonic())
        await self._intake.take(messages, direct=True)
        if self._is_first:
            self._is_first = False
            self._began()
