"""Messages between the exporter and its W&B process: requests and answers, one line of JSON each."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from perfd.config import WandbConfig


class OpenRun(msgspec.Struct, frozen=True, tag="open"):
    """Open the run of the job: the first message about it."""

    config: WandbConfig
    """With the job's team applied."""
    labels: Mapping[str, str] = {}
    """Of the job, for the run's own configuration."""


class LogNumbers(msgspec.Struct, frozen=True, tag="log"):
    """Add one row of history."""

    row: dict[str, float]


class SendAlert(msgspec.Struct, frozen=True, tag="alert"):
    """Send an alert; `level` is W&B's."""

    title: str
    text: str
    level: str


class SaveReport(msgspec.Struct, frozen=True, tag="report"):
    """Set the run's summary, and keep files as an artifact."""

    numbers: dict[str, float]
    files: dict[str, str]


class CloseRun(msgspec.Struct, frozen=True, tag="close"):
    """Upload the rest of the run and end it; answered before that is done."""


RunMessage: TypeAlias = LogNumbers | SendAlert | SaveReport
Message: TypeAlias = OpenRun | RunMessage | CloseRun


class WorkerRequest(msgspec.Struct, frozen=True):
    """A message about the run of one job."""

    job: str
    message: Message


class WorkerReply(msgspec.Struct, frozen=True):
    """Empty on success, otherwise the reason."""

    error: str = ""


class WorkerPipe:
    """One end of the connection. The socket's `OSError`, including timeouts, goes to the caller."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = bytearray()

    def send(self, message: WorkerRequest | WorkerReply) -> None:
        """Write one message."""
        self._socket.sendall(msgspec.json.encode(message) + b"\n")

    def receive(self) -> bytes | None:
        """The next message, not decoded; None if the other end is gone."""
        while (end := self._received.find(b"\n")) < 0:
            data = self._socket.recv(65536)
            if not data:
                return None
            self._received += data
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line
