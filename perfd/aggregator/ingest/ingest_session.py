"""One stream of an agent whose messages an aggregator takes into its state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from perfd.aggregator.state import AgentState
from perfd.model import AgentMessage
from perfd.wire.agent_messages import decode_agent_message
from perfd.wire.sample_tables import TableReader

if TYPE_CHECKING:
    from perfd.aggregator.ingest.ingest import Ingest


class IngestSession:
    """See `AgentSession`."""

    def __init__(self, intake: Ingest, agent: AgentState, number: int, stored: Callable[[], None]) -> None:
        self._intake = intake
        self._agent = agent
        self._number = number
        self._stored = stored
        self.tables = TableReader()
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
        self._intake.events.agent_connected(self.node)

    async def take(self, data: bytes) -> bool:
        if len(data) <= self._intake.limits.large_message_bytes:
            return self._take(data)
        return await asyncio.get_running_loop().run_in_executor(self._intake.large, self._take, data)

    def _take(self, data: bytes) -> bool:
        return self.take_decoded(partial(decode_agent_message, data, self.tables.decode))

    def take_decoded(self, decode: Callable[[], AgentMessage | None]) -> bool:
        """Take what `decode` returns; whether it is a batch that was stored before. Raises `RefusedError`."""
        before = self._agent.stored_sequence
        sequence = self._intake.take(self._agent, decode, self._stored)
        return sequence is not None and 0 < sequence <= before

    def close(self, *, newest: bool) -> None:
        self._intake.left(self._agent, self._number)
        if newest:
            self._intake.events.agent_gone(self.node)
