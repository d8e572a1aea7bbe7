"""What is done with a message of an agent that was greeted, whatever brought it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from perfd.aggregator.ingest.ingest import Ingest
from perfd.aggregator.state import AgentState
from perfd.errors import BatchError, RefusedError
from perfd.model import AgentMessage, Batch, CaptureFilesRemoved, CaptureFileUpload, CaptureStatus, Goodbye


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


class AgentMessages:
    """Takes messages; what cannot be taken is left out and counted."""

    def __init__(self, intake: Ingest, events: AgentEvents) -> None:
        self._intake = intake
        self._events = events

    def take(
        self,
        agent: AgentState,
        decode: Callable[[], AgentMessage | None],
        stored: Callable[[], None],
        *,
        again: bool = False,
    ) -> int | None:
        """Take what `decode` returns; returns the sequence if it is a batch, also one that is left out.

        `stored` is called as by `Ingest.batch`, and `again` is what it takes. Raises `RefusedError` if the
        batch cannot be the next.
        """
        sequence: int | None = None
        try:
            message = decode()
            if isinstance(message, Batch):
                sequence = message.sequence
                # Before the batch is acknowledged: history writes in order.
                for record in message.records:
                    if isinstance(record, CaptureFilesRemoved):
                        self._events.capture_files_removed(agent.node, record)
                    elif isinstance(record, CaptureFileUpload):
                        self._events.capture_file_upload(agent.node, record)
                self._intake.batch(agent, message, stored, again=again)
            elif isinstance(message, CaptureStatus):
                self._events.capture_status(agent.node, message)
            elif isinstance(message, Goodbye):
                self._intake.goodbye(agent, message)
        except RefusedError:
            raise
        except Exception as error:  # noqa: BLE001  (whatever it is, the agent would send it again for ever)
            sequence = error.sequence if isinstance(error, BatchError) else None
            self._intake.left_out(agent, error, sequence, stored)
        return sequence
