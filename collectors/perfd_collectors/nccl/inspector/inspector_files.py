"""Files of NCCL's Inspector, recorded or live."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from perfd.collector import Settings
from perfd.errors import RecordingError
from perfd.model import CollectiveTimes, Record
from perfd_collectors.file_follower import Chunk, FileFollower
from perfd_collectors.nccl.inspector.inspector_lines import (
    InspectedOperation,
    InspectorLines,
    reduce_inspected,
)
from perfd_collectors.ranks.cgroup import CgroupIdentity
from perfd_collectors.ranks.environment import parse_environ, resolve_rank

log = logging.getLogger(__name__)

_SUFFIXES = (".log", ".json", ".jsonl")
_READ_BYTES = 8 << 20
"""Read per collect from all files, which bounds memory and time. Chosen, not measured."""


class RecordedInspector:
    """Plays one rank's file: a line is due at the time when the Inspector wrote it."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self._settings = settings
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RecordingError(f"{path} cannot be read: {error.strerror or error}.") from error
        lines = InspectorLines()
        found = sorted(lines.feed(content + b"\n"), key=lambda one: one.written_unix_ns)
        if lines.skipped_lines:
            extra = {"path": str(path), "lines": lines.skipped_lines}
            log.warning("lines of a recording were skipped", extra=extra)
        rank = _recorded_rank(path)
        if rank is None and found:
            raise RecordingError(f"recording.json has no rank for {path.name}: add `rank` to its stream.")
        self._rank = rank or 0
        self._operations = found
        self._times = [one.written_unix_ns for one in found]
        self._position = 0
        self._window_start_unix_ns = self._times[0] if self._times else 0

    def span_unix_ns(self) -> tuple[int, int] | None:
        return (self._times[0], self._times[-1]) if self._times else None

    def collect(self) -> Sequence[Record]:
        start = self._position
        end = bisect_right(self._times, self._settings.clock.unix_ns(), lo=start)
        if start == end:
            return ()
        self._position = end
        window_start, self._window_start_unix_ns = self._window_start_unix_ns, self._times[end - 1]
        return reduce_inspected(
            self._operations[start:end],
            job=self._settings.job,
            rank=self._rank,
            start_unix_ns=window_start,
            end_unix_ns=self._times[end - 1],
        )

    def close(self) -> None:
        self._position = len(self._times)


class InspectorDirectory:
    """Follows the files that the Inspector writes into a directory, one per process.

    A line holds the PID, not the job's rank: that comes from the process's environment.
    """

    def __init__(
        self, directory: Path, settings: Settings, *, rank_of: Callable[[int], int | None] | None = None
    ) -> None:
        self._settings = settings
        self._rank_of = rank_of or _RankOfProcess(settings.proc)
        self._follower = FileFollower(lambda: _files(directory), from_start=False)
        self._lines: dict[str, InspectorLines] = {}
        self._ranks: dict[int, int | None] = {}
        self._window_start_unix_ns = settings.clock.unix_ns()

    def collect(self) -> list[CollectiveTimes]:
        """Records of what the node's processes wrote since the last call."""
        now_unix_ns = self._settings.clock.unix_ns()
        start_unix_ns, self._window_start_unix_ns = self._window_start_unix_ns, now_unix_ns
        by_rank: dict[int, list[InspectedOperation]] = {}
        for chunk in self._follower.poll(_READ_BYTES):
            for operation in self._operations(chunk):
                rank = self._rank(operation.pid)
                if rank is not None:
                    by_rank.setdefault(rank, []).append(operation)
        return [
            record
            for rank, operations in by_rank.items()
            for record in reduce_inspected(
                operations,
                job=self._settings.job,
                rank=rank,
                start_unix_ns=start_unix_ns,
                end_unix_ns=now_unix_ns,
            )
        ]

    def close(self) -> None:
        """Close all files."""
        self._follower.close()

    def _operations(self, chunk: Chunk) -> Sequence[InspectedOperation]:
        lines = self._lines.setdefault(chunk.stream, InspectorLines())
        if chunk.begins_anew or chunk.attached or chunk.lost:
            lines.restart(inside_a_line=not chunk.begins_anew)
        return list(lines.feed(chunk.data))

    def _rank(self, pid: int | None) -> int | None:
        if pid is None:
            return None
        if self._ranks.get(pid) is None:
            self._ranks[pid] = self._rank_of(pid)
        return self._ranks[pid]


class _RankOfProcess:
    """A process's rank from its environment; None for one that has ended or has no rank."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc

    def __call__(self, pid: int) -> int | None:
        try:
            environ = parse_environ((self._proc / str(pid) / "environ").read_bytes())
        except OSError:
            return None
        found = resolve_rank(environ, CgroupIdentity())
        return None if found is None else found.rank


def _files(directory: Path) -> Mapping[str, Path]:
    try:
        return {path.name: path for path in directory.iterdir() if path.suffix in _SUFFIXES}
    except OSError:
        return {}


class _Stream(msgspec.Struct):
    path: str
    rank: int | None = None


class _Manifest(msgspec.Struct):
    streams: list[_Stream] = []


def _recorded_rank(path: Path) -> int | None:
    """The rank of a stream's file in the nearest `recording.json` above it."""
    path = path.absolute()
    for folder in path.parents[:3]:
        manifest = folder / "recording.json"
        if manifest.is_file():
            try:
                streams = msgspec.json.decode(manifest.read_bytes(), type=_Manifest).streams
            except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return None
            here = path.relative_to(folder).as_posix()
            return next((one.rank for one in streams if one.path.removesuffix(".gz") == here), None)
    return None
