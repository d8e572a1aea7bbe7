"""What the gRPC server needs of whoever takes agents' messages, and how an aggregator takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from perfd.aggregator.ingest.agent_credential import AgentCredential
from perfd.aggregator.ingest.agent_messages import AgentEvents, AgentMessages
from perfd.aggregator.ingest.ingest import Ingest
from perfd.aggregator.limits import Limits
from perfd.aggregator.state import AgentState
from perfd.errors import RefusedError
from perfd.model import Hello, Welcome
from perfd.wire.convert import decode_agent_message
from perfd.wire.sample_tables import TableReader


class AgentSession(Protocol):
    """One stream of an agent, from its Hello on."""

    @property
    def agent_id(self) -> str:
        """The identity of its spool."""

    @property
    def node(self) -> str:
        """The node's name, unique among agents."""

    @property
    def stored_sequence(self) -> int:
        """Up to which batches are safe: the agent may delete them."""

    @property
    def received_sequence(self) -> int:
        """Up to which batches were received: the agent may send more."""

    @property
    def current(self) -> bool:
        """Whether no newer stream represents the agent."""

    @property
    def has_to_resend(self) -> bool:
        """Whether the agent has to connect again and send what is not stored."""

    def connected(self) -> None:
        """The agent got its Welcome."""

    async def take(self, data: bytes) -> bool:
        """Take a message; whether it is a batch that was stored before."""

    def close(self, *, newest: bool) -> None:
        """The stream has ended; `newest` if the agent has no newer one."""


class AgentSessions(Protocol):
    """Opens sessions, and counts what the server refuses."""

    @property
    def limits(self) -> Limits:
        """What agents may send."""

    async def open(
        self, hello: Hello, number: int, credential: AgentCredential, changed: Callable[[], None], /
    ) -> tuple[AgentSession | None, Welcome]:
        """A session for stream `number`; none if the agent has to take a new identity first.

        `changed` is called, from any thread, when more is stored. Raises as `Ingest.hello`.
        """

    def malformed(self) -> None:
        """Count a message that could not be understood."""

    def rejected(self, bound: str) -> None:
        """Count what was refused because of a limit."""

    def refuse(self, sentence: str, *, actor: str) -> RefusedError:
        """Note that a peer without a credential was turned away; returns what to raise."""

    def close(self) -> None:
        """No more sessions follow."""


class IngestSessions:
    """Sessions whose messages are applied to an aggregator's state."""

    def __init__(self, intake: Ingest, events: AgentEvents) -> None:
        self.intake = intake
        self.events = events
        self.messages = AgentMessages(intake, events)
        self.large = ThreadPoolExecutor(1, "perfd-large-messages")
        self.limits = intake.limits
        self.malformed = intake.malformed
        self.rejected = intake.rejected
        self.refuse = intake.refuse

    async def open(
        self, hello: Hello, number: int, credential: AgentCredential, changed: Callable[[], None]
    ) -> tuple[AgentSession | None, Welcome]:
        """See `AgentSessions`."""
        agent, welcome = self.intake.hello(hello, number, credential)
        return (None if agent is None else _IngestSession(self, agent, number, changed)), welcome

    def close(self) -> None:
        """See `AgentSessions`."""
        self.large.shutdown(wait=False, cancel_futures=True)


class _IngestSession:
    """See `AgentSession`."""

    def __init__(
        self, sessions: IngestSessions, agent: AgentState, number: int, stored: Callable[[], None]
    ) -> None:
        self._intake, self._events = sessions.intake, sessions.events
        self._messages, self._large = sessions.messages, sessions.large
        self._agent = agent
        self._number = number
        self._stored = stored
        self._tables = TableReader()
        self.agent_id = agent.agent_id

    @property
    def node(self) -> str:
        return self._agent.node

    @property
    def stored_sequence(self) -> int:
        return self._agent.stored_sequence

    @property
    def received_sequence(self) -> int:
        return self._agent.last_sequence

    @property
    def current(self) -> bool:
        return self._agent.stream == self._number

    @property
    def has_to_resend(self) -> bool:
        return self._intake.unkept(self._agent)

    def connected(self) -> None:
        self._events.agent_connected(self.node)

    async def take(self, data: bytes) -> bool:
        if len(data) <= self._intake.limits.large_message_bytes:
            return self._take(data)
        return await asyncio.get_running_loop().run_in_executor(self._large, self._take, data)

    def _take(self, data: bytes) -> bool:
        before = self._agent.stored_sequence
        decode = partial(decode_agent_message, data, self._tables.decode)
        sequence = self._messages.take(self._agent, decode, self._stored)
        return sequence is not None and 0 < sequence <= before

    def close(self, *, newest: bool) -> None:
        self._intake.left(self._agent, self._number)
        if newest:
            self._events.agent_gone(self.node)
