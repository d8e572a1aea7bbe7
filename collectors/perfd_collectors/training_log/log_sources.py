"""Sources of logs: files by name or pattern, torchrun's folders, standard input, and captured output."""

from __future__ import annotations

import glob
import os
import re
import select
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from perfd.printed_output import PrintedOutput
from perfd_collectors.file_follower import READ_BYTES, Chunk
from perfd_collectors.file_patterns import matching_paths

_ATTEMPT = re.compile(r"attempt_(\d{1,15})")
_STREAMS = ("stdout.log", "stderr.log")
STDIN = "stdin"
PRINTED = "output"


class LogSource(Protocol):
    """Provides a log's bytes as they arrive."""

    def poll(self, limit_bytes: int) -> list[Chunk]:
        """New chunks, at most `limit_bytes`."""

    def close(self) -> None:
        """Free the source's resources; legal twice."""


def matching_files(patterns: Sequence[str]) -> Mapping[str, Path]:
    """Existing regular files that match the patterns, by path."""
    found: dict[str, Path] = {}
    for pattern in patterns:
        paths = matching_paths(pattern) if glob.has_magic(pattern) else [pattern]
        for path in paths:
            if Path(path).is_file():
                found.setdefault(path, Path(path))
    return found


def torchrun_files(directory: Path) -> Mapping[str, Path]:
    """Output files per local rank of the newest attempt of the newest run below `torchrun --log-dir`.

    The layout is `RUN/attempt_N/LOCAL_RANK/{stdout,stderr}.log`. Stream names do not depend on the
    attempt, so that a restart is recognized.
    """
    attempts = [
        (path.parent.stat().st_mtime_ns, path.parent.name, int(match[1]), path)
        for path in directory.glob("*/attempt_*")
        if (match := _ATTEMPT.fullmatch(path.name))
    ]
    if not attempts:
        return {}
    newest = max(attempts)[3]
    ranks = sorted(
        (path for path in newest.iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
    )
    files = {f"{rank.name}/{name}": rank / name for rank in ranks for name in _STREAMS}
    return {stream: path for stream, path in files.items() if path.is_file()}


class StdinSource:
    """Standard input of the agent; never waits for data."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._ended = False

    def poll(self, limit_bytes: int) -> list[Chunk]:
        """Chunks available now."""
        chunks: list[Chunk] = []
        while limit_bytes > 0 and not self._ended and select.select([self._descriptor], [], [], 0)[0]:
            data = os.read(self._descriptor, min(READ_BYTES, limit_bytes))
            self._ended = not data
            limit_bytes -= len(data)
            chunks.append(Chunk(stream=STDIN, data=data, ended=self._ended))
        return chunks

    def close(self) -> None:
        """Standard input stays open."""


class PrintedSource:
    """What the agent's own program captures of the job's output."""

    def __init__(self, printed: PrintedOutput) -> None:
        self._printed = printed

    def poll(self, limit_bytes: int) -> list[Chunk]:
        """What it has, each piece with its time."""
        return [
            Chunk(stream=PRINTED, data=piece.data, ended=piece.last, newest_unix_ns=piece.unix_ns)
            for piece in self._printed.take(limit_bytes)
        ]

    def close(self) -> None:
        """Nothing to free."""
