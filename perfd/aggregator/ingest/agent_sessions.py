"""What the gRPC server needs of whoever takes agents' messages, and who is informed about agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from perfd.aggregator.ingest.agent_credential import AgentCredential
from perfd.aggregator.limits import Limits
from perfd.errors import RefusedError
from perfd.model import CaptureFilesRemoved, CaptureFileUpload, CaptureStatus, Hello, Welcome


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


TakeTogether = Callable[[Sequence[tuple[AgentSession, bytes]]], Sequence[bool | RefusedError]]
"""Takes small messages of its sessions, in order. It returns of each whether it is a batch that was stored
before, or why its stream has to end."""


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

    @property
    def take_together(self) -> TakeTogether | None:
        """None where a session waits for others before it has taken a message."""

    def malformed(self) -> None:
        """Count a message that could not be understood."""

    def rejected(self, bound: str) -> None:
        """Count what was refused because of a limit."""

    def refuse(self, sentence: str, *, actor: str) -> RefusedError:
        """Note that a peer without a credential was turned away; returns what to raise."""

    def close(self) -> None:
        """No more sessions follow."""


class AgentEvents(Protocol):
    """Listens to agents that connect, leave and report on captures. Called from any thread."""

    def agent_connected(self, node: str) -> None:
        """A node's stream is open."""

    def agent_gone(self, node: str) -> None:
        """A node's stream broke."""

    def capture_status(self, node: str, status: CaptureStatus) -> None:
        """An agent reported the state of a capture."""

    def capture_files_removed(self, node: str, removed: CaptureFilesRemoved) -> None:
        """An agent removed files of a capture; it may report this twice."""

    def capture_file_upload(self, node: str, upload: CaptureFileUpload) -> None:
        """An agent uploaded a file of a capture, or could not yet; it may report this twice."""
