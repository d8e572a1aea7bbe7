"""Notices a stream that brings no messages for longer than an election; has another server lead it, once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from typing import TYPE_CHECKING

from perfd.aggregator.ingest.jetstream.nats_stream import Readers
from perfd.aggregator.limits import NatsProgress

if TYPE_CHECKING:
    from nats.aio.client import Client

log = logging.getLogger(__name__)

_STUCK_AFTER_S = 20.0
"""Without a message through the stream while agents send some. Elections take up to 10 s."""
_LOOK_EVERY_S = 5.0
"""Between two looks, up to half more at random: the aggregators of a group do not all act at once."""


class StreamWatch:
    """Watches what one partition's reading gets, on one connection."""

    def __init__(self, client: Client, readers: Readers, progress: NatsProgress) -> None:
        self._client = client
        self._readers = readers
        self._progress = progress
        self._leader: str | None = None
        """The server that led the stream when that was known last."""
        self._suspect: str | None = None
        """The one that led it when it was found silent."""
        self._complained = self._asked = False

    async def run(self) -> None:
        """Watch until canceled."""
        try:
            self._leader = await self._readers.leader(self._client)
            while True:
                await asyncio.sleep(_LOOK_EVERY_S * (1 + random.random() / 2))  # noqa: S311  (spreads looks)
                await self._look()
        finally:
            self._progress.stream_problem = None

    async def _look(self) -> None:
        silent_s = self._progress.undelivered_for_s(time.monotonic())
        if silent_s < _STUCK_AFTER_S:
            self._progress.stream_problem, self._suspect = None, None
            self._complained = self._asked = False
            return
        leader = await self._readers.leader(self._client)
        self._leader = leader or self._leader
        self._progress.stream_problem = self._readers.silence(self._leader)
        if not self._complained:
            self._complained = True
            log.warning(
                "NATS takes or delivers no messages; batches are taken from the agents directly.",
                extra={"reason": self._progress.stream_problem, "silent_s": round(silent_s)},
            )
        if self._suspect is None:
            # A server that is alone has no name.
            self._suspect = self._leader
        elif not self._asked and self._leader == self._suspect:
            # Where another aggregator asked, another server leads by now.
            self._asked = True
            log.warning("Another server is to lead the stream.", extra={"leader": self._leader})
            with contextlib.suppress(Exception):
                await self._readers.step_down(self._client)
