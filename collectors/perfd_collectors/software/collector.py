"""The `software` collector: versions of framework, CUDA, NCCL and driver of the jobs on this node."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfd.collector import Options, Settings
from perfd.errors import NothingHere
from perfd.file_access import as_user
from perfd.model import JobDescription, Record
from perfd_collectors.software.versions import driver_version, package_folders, versions

_MAX_MAPS_BYTES = 8 << 20
"""A process with thousands of mapped files has 1 MB."""
_MOST_ENTRIES = 20_000
"""Read of a folder of packages."""
_LOOKS = frozenset({1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64})
"""The calls at which a process is read: libraries are loaded in its first minutes, and then stay. Chosen, not
measured."""
_REPEAT_CALLS = 60
"""So many calls after the last report it is repeated, for aggregators that start after the agent."""


class SoftwareOptions(Options, frozen=True):
    """No options."""


class _Known:
    """What is known of one process."""

    def __init__(self) -> None:
        self.calls = 0
        self.versions: Mapping[str, str] = {}
        self.reported_at: int | None = None


class SoftwareCollector:
    """Describes each job by the process of its lowest rank here. Reads only /proc and names of folders.

    Raises `NothingHere` where there is no /proc.
    """

    def __init__(self, options: SoftwareOptions, settings: Settings) -> None:
        del options
        self._settings = settings
        self._known: dict[tuple[str, int], _Known] = {}
        if not settings.proc.is_dir():
            raise NothingHere(f"There is no {settings.proc}.")

    def collect(self) -> Sequence[Record]:
        processes = self._settings.local_jobs.processes()
        self._known = {key: self._known.get(key) or _Known() for key in processes.items()}
        return [
            record for (job, pid), known in self._known.items() if (record := self._look(job, pid, known))
        ]

    def close(self) -> None:
        """Nothing is held."""

    def _look(self, job: str, pid: int, known: _Known) -> JobDescription | None:
        known.calls += 1
        before = known.versions
        if known.calls in _LOOKS:
            # A process that is ending has nothing mapped.
            known.versions = self._versions(job, pid) or before
        due = known.reported_at is None or known.calls >= known.reported_at + _REPEAT_CALLS
        if not known.versions or not (due or known.versions != before):
            return None
        known.reported_at = known.calls
        return JobDescription(job=job, framework="", software=known.versions)

    def _versions(self, job: str, pid: int) -> Mapping[str, str]:
        maps = _text(self._settings.proc / str(pid) / "maps")
        if not maps:
            return {}
        uid = self._settings.local_jobs.uid(job)
        root = self._settings.proc / str(pid) / "root"
        installed = [name for folder in package_folders(maps) for name in _names(root, folder, uid)]
        found = dict(versions(maps, installed))
        driver = driver_version(_text(self._settings.proc / "driver/nvidia/version"))
        return found if driver is None else {**found, "NVIDIA driver": driver}


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_MAPS_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _names(root: Path, folder: str, uid: int | None) -> list[str]:
    """The names in a folder of the process' own files, read with its user's rights."""

    def listed() -> list[str]:
        with os.scandir(root / folder.lstrip("/")) as entries:
            return [entry.name for entry, _ in zip(entries, range(_MOST_ENTRIES), strict=False)]

    try:
        return listed() if uid is None else as_user(uid, listed)
    except OSError:
        return []
