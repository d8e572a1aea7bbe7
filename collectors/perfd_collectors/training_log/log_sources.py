"""Sources of logs: files by name or pattern, torchrun's folders, standard input, and captured output."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import select
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from perfd.printed_output import PrintedOutput
from perfd_collectors.file_follower import READ_BYTES, Chunk

_MOST_ENTRIES = 100_000
"""Looked at for one pattern, about 0.3 s: a user can make folders without end. Chosen, not measured."""
_ATTEMPT = re.compile(r"attempt_(\d{1,15})")
_STREAMS = ("stdout.log", "stderr.log")
STDIN = "stdin"
PRINTED = "output"


class _Budget:
    """Entries of folders that may still be looked at."""

    def __init__(self, entries: int) -> None:
        self._left = entries

    def entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        """Those of a folder, until the budget is spent; none of one that cannot be read."""
        try:
            with os.scandir(folder or os.curdir) as found:
                for entry in found:
                    if self._left <= 0:
                        return
                    self._left -= 1
                    yield entry
        except OSError:
            return


def matching_paths(pattern: str, *, most_entries: int = _MOST_ENTRIES) -> list[str]:
    """Paths that match `*`, `?`, `[...]` and `**`, sorted; those that were found in time.

    As `glob.glob` finds them, but `**` follows no links: two that lead to their own folder would keep it
    busy for hours.
    """
    parts = Path(pattern).parts
    begin = Path(pattern).anchor
    return sorted(set(_matching(begin, parts[1:] if begin else parts, _Budget(most_entries))))


def _matching(folder: str, parts: tuple[str, ...], budget: _Budget) -> Iterator[str]:
    if not parts:
        yield folder
        return
    first, rest = parts[0], parts[1:]
    if first == "**":
        yield from _below(folder, rest, budget)
    elif glob.has_magic(first):
        for entry in budget.entries(folder):
            hidden = entry.name.startswith(".") and not first.startswith(".")
            if not hidden and fnmatch.fnmatch(entry.name, first):
                yield from _matching(os.path.join(folder, entry.name), rest, budget)  # noqa: PTH118  (text is faster)
    else:
        path = os.path.join(folder, first)  # noqa: PTH118
        if rest or os.path.lexists(path):
            yield from _matching(path, rest, budget)


def _below(folder: str, rest: tuple[str, ...], budget: _Budget) -> Iterator[str]:
    """Matches in a folder and in all below it."""
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        if rest:
            yield from _matching(here, rest, budget)
        for entry in budget.entries(here):
            if entry.name.startswith("."):
                continue
            path = os.path.join(here, entry.name)  # noqa: PTH118
            if not rest:
                yield path
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)


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
