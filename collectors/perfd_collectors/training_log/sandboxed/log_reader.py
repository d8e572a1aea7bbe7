"""What parses training logs in a process without rights: one message of settings, then bytes of logs."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from perfd.collector import Settings
from perfd_collectors.file_follower import Chunk
from perfd_collectors.sandboxed_records import encode_records
from perfd_collectors.training_log.collector import TrainingLogCollector
from perfd_collectors.training_log.sandboxed.sandboxed_log import LogPieces, ParserSettings


class _Pieces:
    """A source that has what was sent."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []

    def poll(self, limit_bytes: int) -> list[Chunk]:  # noqa: ARG002  (the sender has bounded it)
        """All of it."""
        taken, self.chunks = self.chunks, []
        return taken

    def close(self) -> None:
        """It holds nothing."""


class _Parser:
    """In the sandbox: the first message has the settings, each further one new bytes."""

    def __init__(self) -> None:
        self._pieces = _Pieces()
        self._collector: TrainingLogCollector | None = None

    def __call__(self, message: bytes) -> bytes:
        if self._collector is None:
            settings = msgspec.msgpack.decode(message, type=ParserSettings)
            self._collector = TrainingLogCollector(
                [self._pieces],
                Settings(node=settings.node, job=settings.job),
                framework=settings.framework,
                patterns=settings.patterns,
            )
            return b""
        self._pieces.chunks += msgspec.msgpack.decode(message, type=LogPieces).chunks
        return encode_records(self._collector.collect())


def reader() -> Callable[[bytes], bytes]:
    """What runs in the sandbox."""
    return _Parser()
