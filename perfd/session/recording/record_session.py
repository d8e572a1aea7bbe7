"""`perfd record` without a command: records what this node's collectors return."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from perfd.agent.collection import Runner, create_tasks
from perfd.clock import SystemClock
from perfd.collector import Settings
from perfd.config import AgentConfig
from perfd.errors import RecordingError
from perfd.model import Record
from perfd.recording.recording_writer import RecordingWriter
from perfd.session.recording.best_effort_recorder import tapped

_STOP_TIMEOUT_S = 5.0
"""For a collector that hangs in a driver: the recording's end does not wait for it longer."""


def record(
    config: AgentConfig,
    directory: Path,
    *,
    node: str,
    job: str,
    stop: threading.Event,
    duration_s: float | None,
) -> None:
    """Write a recording until `stop` is set, for at most `duration_s`.

    Raises `RecordingError` if it cannot be written, at the start or later, and
    `Unavailable` or `ConfigError` as an agent would.
    """
    clock = SystemClock()
    settings = Settings(node=node, job=job, clock=clock, proc=Path(config.proc), sys=Path(config.sys))
    writer = RecordingWriter(directory, name=job, start_unix_ns=clock.unix_ns())
    failures: list[RecordingError] = []

    def write(_collector: str, records: Sequence[Record]) -> None:
        try:
            writer.add_records(node, records, clock.unix_ns())
        except RecordingError as error:
            failures.append(error)
            stop.set()

    tasks = create_tasks(config, settings, adapt=lambda spec: tapped(spec, write))
    runner = Runner(tasks, lambda _records, _bookmarks: None, clock)
    try:
        runner.start()
        stop.wait(duration_s)
    finally:
        runner.stop(_STOP_TIMEOUT_S)
        if not failures:
            writer.close()
    if failures:
        raise failures[0]
