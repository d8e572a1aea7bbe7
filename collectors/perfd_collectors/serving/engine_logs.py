"""Which engine wrote a log, and what it says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from perfd.analysis.serving import ServerSetup, Snapshot
from perfd_collectors.serving.sglang.log_lines import SglangLog
from perfd_collectors.serving.sglang.mini import MiniSglangLog
from perfd_collectors.serving.vllm.log_lines import VllmLog


class EngineLog(Protocol):
    """Reads the lines of one engine."""

    info: ServerSetup | None
    unrecognised: int

    def line(self, text: str) -> bool:
        """Take one line; whether it is this engine's."""

    def snapshot(self) -> Snapshot | None:
        """What the lines amount to, or None when there was none that tells anything."""


def engine_logs() -> tuple[EngineLog, ...]:
    """A fresh reader for each engine."""
    return SglangLog(), VllmLog(), MiniSglangLog()


def read_log(lines: Iterable[str]) -> EngineLog | None:
    """The log of the first engine that knows enough of the lines for a snapshot, or None."""
    logs = engine_logs()
    for line in lines:
        for log in logs:
            if log.line(line):
                break
    return next((log for log in logs if log.snapshot() is not None), None)
