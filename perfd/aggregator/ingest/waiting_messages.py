"""Small messages of agents, which wait a moment for those of others: together they cost less."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from perfd.aggregator.ingest.agent_sessions import AgentSessions
from perfd.aggregator.ingest.agent_stream import AgentStream
from perfd.errors import RefusedError

FEWEST_AGENTS = 50
"""With fewer, messages do not wait: so few others come in that time that nothing is saved."""
_WITHIN_S = 0.25
"""So long a message waits at most, and what a round sees is older by no more. Chosen: of 50 agents with
a batch a second, 12 come in that time."""
_MOST = 64
"""Messages that are taken at once, in some 3 ms."""


class WaitingMessages:
    """Takes messages in the order in which they came. All methods run in one event loop."""

    def __init__(self, sessions: AgentSessions, taken: Callable[[], None]) -> None:
        """`taken` is called after messages that waited were taken."""
        self._sessions = sessions
        self._taken = taken
        self._waiting: list[tuple[AgentStream, bytes]] = []
        self._due: asyncio.TimerHandle | None = None

    def may_wait(self, stream: AgentStream, data: bytes) -> bool:
        """Whether a message need not be taken at once: its agent waits for no acknowledgment of it."""
        return (
            stream.every > 1
            and self._sessions.take_together is not None
            and len(data) <= self._sessions.limits.large_message_bytes
        )

    def add(self, stream: AgentStream, data: bytes) -> None:
        """Have a message that may wait taken soon."""
        self._waiting.append((stream, data))
        if len(self._waiting) >= _MOST:
            self.take()
        elif self._due is None:
            self._due = asyncio.get_running_loop().call_later(_WITHIN_S, self.take)

    def take(self) -> None:
        """Take what waits now, but nothing of streams that were replaced or end."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        waiting, self._waiting = self._waiting, []
        together = self._sessions.take_together
        if together is None or not waiting:
            return
        waiting = [(one, data) for one, data in waiting if one.session.current and one.aborted is None]
        outcomes = together([(stream.session, data) for stream, data in waiting])
        for (stream, _), outcome in zip(waiting, outcomes, strict=True):
            if isinstance(outcome, RefusedError):
                stream.abort(str(outcome), grpc.StatusCode.PERMISSION_DENIED)
            else:
                stream.taken(repeat=outcome)
        self._taken()
