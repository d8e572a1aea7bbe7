"""A node's folder of pod logs, as kubelet and container runtime write it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

UIDS = [f"0f7ac4f5-7a4c-4f0e-9a2a-6a5d8c1b2e{number:02x}" for number in range(16)]
START = datetime(2026, 5, 1, 10, 0, tzinfo=UTC)


class ContainerFolder:
    """The log of one container."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attempt = 0
        self._moments = _moments()
        folder.mkdir(parents=True)
        self.live.touch()

    @property
    def live(self) -> Path:
        """The file that the container writes to."""
        return self.folder / f"{self.attempt}.log"

    def prints(self, text: str, stream: str = "stdout", tag: str = "F") -> None:
        """Append lines as the runtime does; a `tag` of P marks parts of lines."""
        with self.live.open("a") as file:
            for line in text.splitlines():
                file.write(f"{next(self._moments)} {stream} {tag} {line}\n")

    def rotates(self, stamp: str, *, compress: bool = False) -> Path:
        """Rename the file as the kubelet does, and begin another one."""
        renamed = self.live.rename(self.live.with_name(f"{self.live.name}.{stamp}"))
        if compress:
            renamed = self.compresses(renamed)
        self.live.touch()
        return renamed

    def compresses(self, rotated: Path) -> Path:
        """Compress a rotated file and remove the plain one, as the kubelet does with all but the newest."""
        packed = rotated.with_name(f"{rotated.name}.gz")
        packed.write_bytes(gzip.compress(rotated.read_bytes()))
        rotated.unlink()
        return packed

    def restarts(self) -> None:
        """Begin the log of the next start of the container."""
        self.attempt += 1
        self.live.touch()


def pod(directory: Path, name: str, namespace: str = "research", number: int = 0) -> Path:
    """The folder of a pod."""
    path = directory / f"{namespace}_{name}_{UIDS[number]}"
    path.mkdir(parents=True)
    return path


def _moments() -> Iterator[str]:
    at = START
    while True:
        yield at.strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
        at += timedelta(seconds=2)
