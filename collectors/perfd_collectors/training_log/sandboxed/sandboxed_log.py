"""Training logs of an agent of root: it reads the files, a process without rights parses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from perfd.clock import Clock
from perfd.errors import SandboxError
from perfd.model import Record
from perfd.sandbox import Sandbox
from perfd_collectors.file_follower import Chunk
from perfd_collectors.sandboxed_records import decode_records
from perfd_collectors.training_log.log_sources import LogSource

_READER = "perfd_collectors.training_log.sandboxed.log_reader:reader"
_ANSWERS_WITHIN_S = 600.0
"""Far above the 12 s that 8 MiB of dense lines took on a busy core: reading anew would not be faster."""
_AGAIN_AFTER_S = 30.0
"""After the process ended, so that a log that ends it each time costs little. Chosen, not measured."""


class ParserSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the parser has to know before the first bytes."""

    node: str
    job: str
    framework: str | None
    patterns: tuple[str, ...]


class LogPieces(msgspec.Struct, frozen=True, kw_only=True):
    """What the logs had since the last time."""

    chunks: list[Chunk]


class SandboxedTrainingLog:
    """Reads the logs, and lets a sandbox turn them into records; reads them anew after it ended."""

    def __init__(
        self,
        sources: Callable[[], Sequence[LogSource]],
        settings: ParserSettings,
        clock: Clock,
        max_read_bytes: int,
    ) -> None:
        self._open_sources = sources
        self._sources: Sequence[LogSource] = ()
        self._settings = settings
        self._clock = clock
        self._max_read_bytes = max_read_bytes
        self._sandbox: Sandbox | None = None
        self._problem: SandboxError | None = None
        self._again_s = float("-inf")

    def collect(self) -> Sequence[Record]:
        """Records of the lines since the last call; raises `SandboxError` while there is no sandbox."""
        now_s = self._clock.monotonic_s()
        if self._problem is not None and now_s < self._again_s:
            raise self._problem
        try:
            if self._sandbox is None:
                self._sandbox = self._begin()
            return self._records(self._sandbox)
        except SandboxError as error:
            self.close()
            self._problem, self._again_s = error, now_s + _AGAIN_AFTER_S
            raise

    def close(self) -> None:
        """Close the logs, and end the sandbox."""
        for source in self._sources:
            source.close()
        self._sources = ()
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _begin(self) -> Sandbox:
        sandbox = Sandbox(_READER, answers_within_s=_ANSWERS_WITHIN_S)
        sandbox.ask(msgspec.msgpack.encode(self._settings))
        self._sources = self._open_sources()
        self._problem = None
        return sandbox

    def _records(self, sandbox: Sandbox) -> Sequence[Record]:
        limit = self._max_read_bytes
        chunks: list[Chunk] = []
        for source in self._sources:
            read = source.poll(limit)
            limit -= sum(len(chunk.data) for chunk in read)
            chunks += read
        answer = sandbox.ask(msgspec.msgpack.encode(LogPieces(chunks=chunks)))
        return decode_records(answer)
