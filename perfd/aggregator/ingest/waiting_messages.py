"""Small messages of agents, which wait a moment for those of others: together they cost less."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from perfd.aggregator.ingest.agent_sessions import AgentSessions
from perfd.aggregator.ingest.agent_stream import AgentStream
from perfd.clock import Schedule
from perfd.errors import RefusedError

FEWEST_AGENTS = 50
"""With fewer, messages do not wait: so few others come in that time that nothing is saved."""
_WITHIN_S = 0.25
"""So long a message waits at most, and what a round sees is older by no more. Chosen: of 50 agents with
a batch a second, 12 come in that time."""
_BEFORE_ROUND_S = 0.03
"""So long before a round all that waits is taken, or only the next one would see it. Taking it lasts 5 ms."""
_MOST = 64
"""Messages that are taken at once, in some 3 ms."""


class WaitingMessages:
    """Takes messages in the order in which they came. All methods run in one event loop."""

    def __init__(self, sessions: AgentSessions, taken: Callable[[], None], rounds: Schedule | None) -> None:
        """`taken` is called after messages that waited were taken; `rounds` need what came before them."""
        self._sessions = sessions
        self._taken = taken
        self._rounds = rounds
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
            self._due = asyncio.get_running_loop().call_later(self._patience_s(), self.take)

    def _patience_s(self) -> float:
        """How long what comes now may wait for more."""
        if self._rounds is None:
            return _WITHIN_S
        now_s = asyncio.get_running_loop().time()
        self._rounds.skip(now_s)
        return min(_WITHIN_S, max(0.0, self._rounds.next_s - now_s - _BEFORE_ROUND_S))

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
