"""The training's steps in the logs of the pods of one job on this node."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from perfd.model import JobDescription, Record, TrainingStep
from perfd_collectors.pods.container_log import ContainerLog
from perfd_collectors.pods.pod_parsers import JobPieces, LogPiece, PodParsers

_GIVE_UP_BYTES = 64 << 20
"""A container that has printed so much without a step trains nothing. Chosen, not measured."""


@dataclass(slots=True)
class _Container:
    name: str
    log: ContainerLog
    read_bytes: int = 0
    after: list[str] = field(default_factory=list)
    """Containers of the job that had ended before it was made."""


class PodLogs:
    """Reads the containers of a job's pods. Nothing is reported before the first step or description."""

    def __init__(self, job: str, parsers: PodParsers) -> None:
        self.job = job
        """The job's name."""
        self._parsers = parsers
        self._containers: dict[Path, _Container] = {}
        self.drained = True
        """Whether the last read reached the end of all logs."""
        self.trains = False
        """Whether a container has printed steps."""

    def follows(self, folder: Path) -> bool:
        """Whether a container's folder is read."""
        return folder in self._containers

    def follow(self, pod: str, folder: Path, after: Collection[str] = ()) -> None:
        """Read a container's folder from now on; `after` are pods of the job that had ended before."""
        ended = [one.name for one in self._containers.values() if one.name.partition("/")[0] in after]
        self._containers[folder] = _Container(f"{pod}/{folder.name}", ContainerLog(folder), after=ended)

    def close(self) -> None:
        """Close all logs, and forget what they had; legal twice."""
        for container in self._containers.values():
            container.log.close()
        self._containers.clear()
        self._parsers.forget(self.job)

    def read(self, limit_bytes: int, now_unix_ns: int) -> tuple[list[Record], int]:
        """The records of what is new, and how many bytes that was; at most `limit_bytes` are read.

        Raises `SandboxError` when what was read is lost: close these logs, and follow them anew.
        """
        self._parsers.ready(self.job)
        taken = 0
        pieces: list[LogPiece] = []
        for folder in self._in_turn():
            if taken >= limit_bytes:
                break
            taken += self._read(self._containers[folder], limit_bytes - taken, pieces)
        names = [container.name for container in self._containers.values()]
        new = JobPieces(job=self.job, now_unix_ns=now_unix_ns, containers=names, pieces=pieces)
        records = list(self._parsers.records(new))
        self.drained = taken == 0
        self.trains |= any(isinstance(record, TrainingStep | JobDescription) for record in records)
        return records if self.trains else [], taken

    def _in_turn(self) -> list[Path]:
        """The one that was first goes to the end, so that a chatty one does not silence the others."""
        folders = list(self._containers)
        if folders:
            self._containers[folders[0]] = self._containers.pop(folders[0])
        return folders

    def _read(self, container: _Container, limit_bytes: int, pieces: list[LogPiece]) -> int:
        before = container.read_bytes
        for part in container.log.read(limit_bytes):
            piece = LogPiece(
                container=container.name,
                data=part.data,
                restarted=part.restarted,
                gap=part.gap,
                first=part.first,
                after=[container.name] if part.restarted else [] if container.read_bytes else container.after,
            )
            container.read_bytes += len(part.data)
            pieces.append(piece)
        if not self.trains and container.read_bytes > _GIVE_UP_BYTES:
            container.log.give_up()
        return container.read_bytes - before
