"""The kubelet's folders of logs: the pods and containers, and the files of each container in order."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FOLDER = re.compile(r"([a-z0-9.-]{1,253})_([a-z0-9.-]{1,253})_([0-9a-f-]{32,36})")
_FILE = re.compile(r"(\d{1,9})\.log(?:\.(\d{8}-\d{6}))?(\.gz)?")
_LIVE = "~"
"""Sorts after every time: the file that the container writes to now."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of a container's log."""

    attempt: int
    """How often the container had been restarted."""
    rotated: str
    """When the kubelet renamed it; `~` for the one that is written to."""
    path: Path
    compressed: bool = False

    @property
    def key(self) -> tuple[int, str]:
        """Sorts files as they were written; the same one keeps it when it is compressed."""
        return self.attempt, self.rotated

    @property
    def live(self) -> bool:
        """Whether the container writes to it, as its name says."""
        return self.rotated == _LIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFolder:
    """The logs of one pod."""

    namespace: str
    name: str
    uid: str
    path: Path

    def containers(self) -> Iterator[Path]:
        """The folder of each container, init containers included."""
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            yield from sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))


def pod_folders(directory: Path) -> list[PodFolder]:
    """The pods that have logs on this node; raises `OSError` when the folder of all cannot be read."""
    with os.scandir(directory) as entries:
        found = [(entry, _FOLDER.fullmatch(entry.name)) for entry in entries if entry.is_dir()]
    return [
        PodFolder(namespace=match[1], name=match[2], uid=match[3], path=Path(entry.path))
        for entry, match in sorted(found, key=lambda one: one[0].name)
        if match is not None
    ]


def log_files(container: Path) -> list[LogFile]:
    """A container's files, oldest first; empty when it is gone. One that is being compressed counts once."""
    with contextlib.suppress(OSError), os.scandir(container) as entries:
        found: dict[tuple[int, str], LogFile] = {}
        for entry in entries:
            match = _FILE.fullmatch(entry.name)
            if match is None or (match[3] and not match[2]):
                continue
            file = LogFile(int(match[1]), match[2] or _LIVE, Path(entry.path), match[3] is not None)
            before = found.get(file.key)
            if before is None or before.compressed:
                found[file.key] = file
        return [found[key] for key in sorted(found)]
    return []
