"""Files of PyTorch's flight recorder on this node, and in a recording."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from perfd.collector import Settings
from perfd.errors import RecordingError, reason_of
from perfd.model import CollectiveProgress, Event, EventKind, Record
from perfd_collectors.nccl.flight_recorder.dump import FlightRecorderError
from perfd_collectors.nccl.flight_recorder.dump_reader import DumpReader

log = logging.getLogger(__name__)

_MOST_IGNORED = 1024
"""Files that are remembered so that each is logged once; bounds memory."""
_RANK = re.compile(r"(\d{1,6})(?:\.(?:pickle|pkl|json))?")


class DumpDirectory:
    """Reads dumps that appear or change from now on; `prefix` is their path without the rank."""

    def __init__(self, prefix: str, settings: Settings) -> None:
        path = Path(prefix)
        self._folder, self._name = path.parent, path.name
        self._settings = settings
        self._seen: dict[Path, tuple[int, int]] = {path: version for path, version, _ in self._files()}
        self._ignored: set[Path] = set()
        """Those of other users, which are logged once."""
        self._retry: set[Path] = set()
        """Files that failed to be read once and are tried once more: they may have been incomplete."""

    def collect(self) -> list[Record]:
        """Progress of the ranks whose dumps are new; an event for each dump that cannot be read."""
        records: list[Record] = []
        with closing(DumpReader(self._settings)) as reader:
            self._collect(records, reader)
        return records

    def _collect(self, records: list[Record], reader: DumpReader) -> None:
        for path, version, rank in self._files():
            if (foreign := self._foreign(path)) is not None:
                self._ignore(path, foreign)
                continue
            known = self._seen.get(path) == version
            if known and path not in self._retry:
                continue
            self._seen[path] = version
            self._retry.discard(path)
            try:
                records += reader.read(path, rank)
            except (OSError, FlightRecorderError) as error:
                if known or self._settings.ending.is_set():
                    records.append(self._unreadable(path, rank, error))
                else:
                    # It may still be being written.
                    self._retry.add(path)

    def _foreign(self, path: Path) -> int | None:
        """The user of a dump who is not the job's; None for one that may be read.

        Anyone can write to a shared folder. Without a rank of the job on this node, only the agent's own
        user is believed.
        """
        try:
            owner = path.lstat().st_uid
        except OSError:
            return None
        return None if owner in {self._settings.local_jobs.uid(self._settings.job), os.geteuid()} else owner

    def _ignore(self, path: Path, owner: int) -> None:
        if path not in self._ignored and len(self._ignored) < _MOST_IGNORED:
            self._ignored.add(path)
            log.warning(
                "A flight recorder dump is ignored: it is not of the job's user.",
                extra={"path": str(path), "uid": owner},
            )

    def _unreadable(self, path: Path, rank: int, error: Exception) -> Event:
        extra = {"path": str(path), "why": str(error)}
        log.warning("flight recorder dump skipped", extra=extra)
        return Event(
            kind=EventKind.DUMP_UNREADABLE,
            time_unix_ns=self._settings.clock.unix_ns(),
            message=f"The flight recorder dump of rank {rank} cannot be read: {reason_of(error)}.",
            job=self._settings.job,
            rank=rank,
        )

    def _files(self) -> Iterator[tuple[Path, tuple[int, int], int]]:
        try:
            entries = sorted(self._folder.iterdir())
        except OSError:
            return
        for path in entries:
            rank = _rank_of(path.name, self._name)
            if rank is None:
                continue
            try:
                status = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield path, (status.st_mtime_ns, status.st_size), rank


class RecordedDump:
    """Plays one rank's dump: its records are due at the times in the dump."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self._clock = settings.clock
        found = re.search(r"(\d{1,6})(?:\.\w+)*$", path.name)
        if found is None:
            raise RecordingError(f"{path.name} does not end in a rank number: rename it.")
        try:
            self._due: Sequence[CollectiveProgress] = DumpReader(settings).read(path, int(found[1]))
        except (OSError, FlightRecorderError) as error:
            raise RecordingError(
                f"{path} is not a readable flight recorder dump: {reason_of(error)}."
            ) from error

    def span_unix_ns(self) -> tuple[int, int] | None:
        times = [progress.time_unix_ns for progress in self._due]
        return (min(times), max(times)) if times else None

    def collect(self) -> Sequence[Record]:
        now_unix_ns = self._clock.unix_ns()
        due = [progress for progress in self._due if progress.time_unix_ns <= now_unix_ns]
        self._due = [progress for progress in self._due if progress.time_unix_ns > now_unix_ns]
        return due

    def close(self) -> None:
        self._due = ()


def _rank_of(name: str, prefix: str) -> int | None:
    if not name.startswith(prefix):
        return None
    found = _RANK.fullmatch(name, len(prefix))
    return int(found[1]) if found else None
