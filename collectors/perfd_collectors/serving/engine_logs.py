"""Recognizes the engine that wrote a log, and reads it."""

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
    unrecognized: int

    def line(self, text: str) -> bool:
        """Parse one line; returns whether it is this engine's."""

    def snapshot(self) -> Snapshot | None:
        """The state after all lines; None without an informative one."""


def engine_logs() -> tuple[EngineLog, ...]:
    """A new reader per engine."""
    return SglangLog(), VllmLog(), MiniSglangLog()


def read_log(lines: Iterable[str]) -> EngineLog | None:
    """The log of the first engine whose lines suffice for a snapshot; None if there is none."""
    logs = engine_logs()
    for line in lines:
        for log in logs:
            if log.line(line):
                break
    return next((log for log in logs if log.snapshot() is not None), None)
