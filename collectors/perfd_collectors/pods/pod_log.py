"""The training's steps in the logs of the pods of one job on this node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfd.model import Event, EventKind, JobDescription, LogProgress, Record, TrainingStep
from perfd_collectors.pods.container_log import ContainerLog
from perfd_collectors.pods.cri_lines import CriLines
from perfd_collectors.training_log.log_parser import LogParser, new_job

_GIVE_UP_BYTES = 64 << 20
"""A container that has printed so much without a step trains nothing. Chosen, not measured."""
_SETTLED_AFTER_NS = 2 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFormat:
    """Which lines are steps, as in the collector `training_log`."""

    framework: str | None = None
    patterns: Sequence[re.Pattern[str]] = ()


@dataclass(slots=True)
class _Container:
    name: str
    log: ContainerLog
    lines: CriLines = field(default_factory=CriLines)
    parsers: dict[str, LogParser] = field(default_factory=dict)
    last_line_unix_ns: dict[str, int] = field(default_factory=dict)
    read_bytes: int = 0


class PodLogs:
    """Reads the containers of a job's pods. Nothing is reported before the first step or description."""

    def __init__(self, job: str, form: LogFormat) -> None:
        self._form = form
        self._context = new_job(job)
        self._containers: dict[Path, _Container] = {}
        self.drained = True
        """Whether the last read reached the end of all logs."""
        self.trains = False
        """Whether a container has printed steps."""

    @property
    def job(self) -> str:
        """The job's name."""
        return self._context.out.job

    def follow(self, pod: str, folder: Path) -> None:
        """Read a container's folder from now on; legal for one that is read already."""
        if folder not in self._containers:
            self._containers[folder] = _Container(f"{pod}/{folder.name}", ContainerLog(folder))

    def drop(self, pod_folder: Path) -> None:
        """Close the logs of a pod."""
        for folder in [folder for folder in self._containers if folder.parent == pod_folder]:
            self._containers.pop(folder).log.close()

    def close(self) -> None:
        """Close all logs; legal twice."""
        for container in self._containers.values():
            container.log.close()
        self._containers.clear()

    def read(self, limit_bytes: int, now_unix_ns: int) -> tuple[list[Record], int]:
        """The records of what is new, and how many bytes that was; at most `limit_bytes` are read."""
        taken = 0
        out = self._context.out
        restarts: list[str] = []
        for folder in self._in_turn():
            if taken >= limit_bytes:
                break
            taken += self._read(self._containers[folder], limit_bytes - taken, now_unix_ns, restarts)
        self._settle(now_unix_ns)
        self.drained = taken == 0
        records = list(out.take(now_unix_ns))
        self.trains |= any(isinstance(record, TrainingStep | JobDescription) for record in records)
        if not self.trains:
            return [], taken
        events = [
            Event(
                kind=EventKind.RESTARTED,
                time_unix_ns=now_unix_ns,
                message=f"{name} was restarted.",
                job=out.job,
            )
            for name in restarts
        ]
        return [*events, *records, *self._progress()], taken

    def _in_turn(self) -> list[Path]:
        """The one that was first goes to the end, so that a chatty one does not silence the others."""
        folders = list(self._containers)
        if folders:
            self._containers[folders[0]] = self._containers.pop(folders[0])
        return folders

    def _read(self, container: _Container, limit_bytes: int, now_unix_ns: int, restarts: list[str]) -> int:
        before = container.read_bytes
        for part in container.log.read(limit_bytes):
            if part.gap:
                container.lines.gap()
            if part.restarted:
                container.lines = CriLines()
                restarts.append(container.name)
            for parser in container.parsers.values():
                if part.restarted:
                    parser.restart()
                elif part.gap:
                    parser.gap()
            container.read_bytes += len(part.data)
            for stream, data in container.lines.feed(part.data).items():
                if stream not in container.parsers:
                    container.parsers[stream] = LogParser(
                        self._context, framework=self._form.framework, patterns=self._form.patterns
                    )
                container.parsers[stream].feed(data)
                container.last_line_unix_ns[stream] = now_unix_ns
        if not self.trains and container.read_bytes > _GIVE_UP_BYTES:
            container.log.give_up()
        return container.read_bytes - before

    def _settle(self, now_unix_ns: int) -> None:
        for container in self._containers.values():
            for stream, last_unix_ns in container.last_line_unix_ns.items():
                if now_unix_ns - last_unix_ns >= _SETTLED_AFTER_NS:
                    container.parsers[stream].settle()

    def _progress(self) -> list[LogProgress]:
        return [
            LogProgress(
                job=self._context.out.job,
                stream=f"{container.name}/{stream}",
                lines=parser.lines,
                read_bytes=parser.read_bytes,
                unrecognized_lines=parser.unrecognized_lines,
                last_line_unix_ns=container.last_line_unix_ns.get(stream),
            )
            for container in self._containers.values()
            for stream, parser in container.parsers.items()
        ]
