"""Finds the segments of processes that have a /dev/shm of their own, as in containers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfd.capture.node import environment_of, namespace_pids
from perfd_collectors.nccl.plugin_library import DIRECTORY_VARIABLE
from perfd_collectors.nccl.segments.segment_discovery import FILE_PREFIX, segment_names

_DEFAULT_DIRECTORY = "/dev/shm"  # noqa: S108  (the plugin's)
_MOST_PROCESSES = 512
"""With locks on files, that are looked at; chosen. A node has tens, of databases and of ranks."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a process has its segment, through its own root, and how the file's name begins."""

    directory: Path
    begin: str


class PrivateSegments:
    """Segments of processes with another mount namespace, by /proc/PID/root.

    It takes the right to see such a process: root with CAP_SYS_PTRACE, or the same user. Each process's own
    segment is found by its own root, so that a path lasts as long as its process.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._places: dict[int, _Place | None] = {}
        """By PID; None for a process with the agent's mount namespace."""

    def paths(self, lock_holders: Collection[int]) -> dict[str, int]:
        """The paths of their segments, each with its process, which holds a lock on it while it lives."""
        holders = sorted(lock_holders)[-_MOST_PROCESSES:]
        self._places = {
            pid: self._places[pid] if pid in self._places else self._place(pid) for pid in holders
        }
        return {
            path: pid for pid, place in self._places.items() if place is not None for path in _segments(place)
        }

    def _place(self, pid: int) -> _Place | None:
        process = self._proc / str(pid)
        namespace = Path("ns", "mnt")
        try:
            if (process / namespace).readlink() == (self._proc / "self" / namespace).readlink():
                return None
        except OSError:
            return None
        directory = environment_of(self._proc, pid).get(DIRECTORY_VARIABLE) or _DEFAULT_DIRECTORY
        numbers = namespace_pids(self._proc, pid)
        if not numbers or not directory.startswith("/"):
            return None
        return _Place(process / "root" / directory.lstrip("/"), f"{FILE_PREFIX}{numbers[-1]}-")


def _segments(place: _Place) -> Sequence[str]:
    names = segment_names(place.directory)
    return [str(place.directory / name) for name in names if name.startswith(place.begin)]
