"""Has messages from NATS taken, one group at a time, and acknowledges what is stored."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfd.aggregator.ingest.jetstream.nats_sessions import NatsSessions, Receipt
from perfd.aggregator.limits import NatsProgress
from perfd.errors import PerfdError

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

log = logging.getLogger(__name__)

_REASON_CHARACTERS = 300
"""Of the sentence that goes with a refused message: headers are short."""
_HEADERS_BYTES = 1024
"""What the headers of a refused message take at most, with the reason."""


class NatsIntake:
    """What one way brings from the agents: through a consumer, or directly.

    All ways share `sessions` and `turn`, which one of them at a time holds.
    """

    def __init__(
        self,
        client: Client,
        sessions: NatsSessions,
        progress: NatsProgress,
        turn: asyncio.Lock,
        acknowledgment: bytes,
    ) -> None:
        """`acknowledgment` is what the sender of a message gets once it is stored."""
        self._client = client
        self.sessions = sessions
        self.progress = progress
        self._turn = turn
        self._acknowledgment = acknowledgment
        self._unsettled: deque[tuple[str, Receipt]] = deque()
        """The subject of the acknowledgment, and what became of the message."""
        self._complained = False

    @property
    def unsettled_messages(self) -> int:
        """Taken and not stored yet."""
        return len(self._unsettled)

    async def take(self, messages: Sequence[Msg], *, direct: bool = False) -> None:
        """Take messages and publish the answers; `direct` ones did not come in the stream's order."""
        async with self._turn:
            taking = asyncio.ensure_future(asyncio.to_thread(self._take, messages, direct=direct))
            try:
                receipts = await asyncio.shield(taking)
            except asyncio.CancelledError:
                # The next reading uses the same sessions.
                await asyncio.wait({taking})
                raise
        for message, receipt in zip(messages, receipts, strict=True):
            for answer in receipt.answers:
                await self._client.publish(answer.subject, answer.data)
            if receipt.refused and not direct:
                await self._set_aside(message, receipt)
            # What cannot be taken directly comes again through the stream, where a copy of it is kept.
            if message.reply and not (direct and (receipt.refused or receipt.kept_for_later)):
                self._unsettled.append((message.reply, receipt))

    def _take(self, messages: Sequence[Msg], *, direct: bool) -> list[Receipt]:
        return [self.sessions.take(message.subject, message.data, direct=direct) for message in messages]

    async def settle(self) -> None:
        """Acknowledge what is stored; the rest waits."""
        waiting: deque[tuple[str, Receipt]] = deque()
        for reply, receipt in self._unsettled:
            if receipt.settled:
                await self._client.publish(reply, self._acknowledgment)
                self.sessions.settled(receipt)
            else:
                waiting.append((reply, receipt))
        self._unsettled = waiting
        for answer in self.sessions.stored_messages():
            await self._client.publish(answer.subject, answer.data)

    def forget_unsettled(self) -> None:
        """Acknowledge none of what was taken and is not stored yet."""
        self._unsettled.clear()

    async def _set_aside(self, message: Msg, receipt: Receipt) -> None:
        """Keep a copy of what could not be taken, for a week, with the reason."""
        self.progress.refused_messages += 1
        if not self._complained:
            self._complained = True
            log.warning(
                "A message in NATS cannot be taken: it is kept in the stream for refused ones. "
                "Further ones are only counted.",
                extra={"subject": message.subject, "reason": receipt.refused},
            )
        subject = message.subject.replace("perfd.from.", "perfd.refused.", 1)
        headers = {"Perfd-Reason": receipt.refused[:_REASON_CHARACTERS].encode("ascii", "replace").decode()}
        # The server counts the headers too, and ends the connection of whoever sends more than it takes.
        kept = message.data[: self._client.max_payload - _HEADERS_BYTES]
        try:
            await self._client.jetstream().publish(subject, kept, headers=headers)
        except Exception as error:
            receipt.kept_for_later = True
            raise PerfdError(f"NATS: a refused message cannot be stored: {error}") from error
