"""One agent's stream, and the coroutine that sends what waits for its agent."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field

import grpc
import grpc.aio

from perfd.aggregator.ingest.agent_sessions import AgentSession
from perfd.model import Ack
from perfd.wire.convert import encode_message

Context = grpc.aio.ServicerContext[bytes, bytes]
"""Of a stream, whose messages are bytes here."""


@dataclass(slots=True)
class AgentStream:
    """One agent's stream, from its Hello on."""

    number: int
    context: Context
    session: AgentSession
    every: int
    """Batches that may wait for their acknowledgment."""
    messages: deque[bytes] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """There is something to send."""
    acknowledged: int = 0
    """What the agent knows to be stored."""
    repeat: bool = False
    """The agent sent what it was acknowledged: it missed that."""
    slow: bool = False
    """What was received is not stored after a while: the agent should know that it may send more."""
    over: bool = False
    """Nothing more is to be sent."""
    aborted: tuple[grpc.StatusCode, str] | None = None
    """Why the agent has to open another stream."""

    @property
    def is_due(self) -> bool:
        """Whether as many batches are stored as may wait for their acknowledgment."""
        return self.session.stored_sequence - self.acknowledged >= self.every

    def abort(self, why: str, code: grpc.StatusCode = grpc.StatusCode.ABORTED) -> None:
        """Have the coroutine that writes end the stream: gRPC refuses the status while it sends a message."""
        self.aborted = code, why
        self.changed.set()

    def taken(self, *, repeat: bool) -> None:
        """Note that a message was taken, and whether it is a batch that was stored before."""
        self.repeat |= repeat
        if self.repeat or self.is_due:
            self.changed.set()


async def write_all(stream: AgentStream) -> None:
    """Send what waits until the stream is over; one acknowledgement covers all batches stored by then."""
    session, context = stream.session, stream.context
    received = session.received_sequence
    # The reader notices a stream that broke.
    with contextlib.suppress(grpc.aio.BaseError, asyncio.InvalidStateError):
        while True:
            await stream.changed.wait()
            stream.changed.clear()
            if stream.aborted is not None:
                await context.abort(*stream.aborted)
            if stream.over:
                return
            while stream.messages:
                await context.write(stream.messages.popleft())
            stored, taken = session.stored_sequence, session.received_sequence
            if stored > stream.acknowledged or stream.repeat or (stream.slow and taken > received):
                stream.repeat = stream.slow = False
                stream.acknowledged, received = stored, taken
                await context.write(encode_message(Ack(sequence=stored, received_sequence=taken)))
