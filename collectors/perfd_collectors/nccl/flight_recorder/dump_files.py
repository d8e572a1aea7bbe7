"""Files of PyTorch's flight recorder on this node; for an agent of root, a process without rights reads."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from perfd.collector import Settings
from perfd.errors import RecordingError, SandboxError, reason_of
from perfd.file_access import opened_inside
from perfd.model import Batch, CollectiveProgress, Event, EventKind, Record
from perfd.safe_pickle import MAX_BYTES
from perfd.sandbox import Sandbox
from perfd.wire.agent_messages import decode_agent_message
from perfd.wire.convert import encode_message
from perfd_collectors.nccl.flight_recorder.dump import FlightRecorderError, read_dump

log = logging.getLogger(__name__)
_Identity: TypeAlias = tuple[int, int]
"""Device and inode."""
_Version: TypeAlias = tuple[int, int]
"""Time of the last change, and size."""
_MOST_IGNORED = 1024
"""Files that are remembered so that each is logged once; bounds memory."""
_RANK = re.compile(r"(\d{1,6})(?:\.(?:pickle|pkl|json))?")


class _Dump(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    rank: int
    read_unix_ns: int
    data: bytes


class DumpReader:
    """Reads the dumps of one look; its sandbox starts with the first one, and ends at `close`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sandbox: Sandbox | None = None

    def read(
        self, path: Path, rank: int, *, job: str | None = None, folder: int | None = None
    ) -> Sequence[CollectiveProgress]:
        """The progress in a dump, whose path may begin at the descriptor of a folder.

        Raises `OSError` or `FlightRecorderError`.
        """
        # The folder may be world-writable: a link could point to another user's file.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path, flags, dir_fd=folder)
        with open(descriptor, "rb") as file:  # noqa: PTH123  (a descriptor has no path)
            data = file.read(MAX_BYTES + 1)
        job = self._settings.job if job is None else job
        dump = _Dump(job=job, rank=rank, read_unix_ns=self._settings.clock.unix_ns(), data=data)
        return self._in_sandbox(dump) if self._settings.sandboxed else _progress(dump)

    def close(self) -> None:
        """End the sandbox; legal twice."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _in_sandbox(self, dump: _Dump) -> Sequence[CollectiveProgress]:
        try:
            if self._sandbox is None:
                self._sandbox = Sandbox(f"{__name__}:reader")
            batch = decode_agent_message(self._sandbox.ask(msgspec.msgpack.encode(dump)))
        except SandboxError as error:
            self.close()
            raise FlightRecorderError(str(error)) from error
        records = batch.records if isinstance(batch, Batch) else ()
        return [record for record in records if isinstance(record, CollectiveProgress)]


def _progress(dump: _Dump) -> Sequence[CollectiveProgress]:
    return read_dump(dump.data, job=dump.job, rank=dump.rank, read_unix_ns=dump.read_unix_ns)


def _answer(message: bytes) -> bytes:
    dump = msgspec.msgpack.decode(message, type=_Dump)
    return encode_message(Batch(sequence=1, sent_unix_ns=0, records=_progress(dump)))


def reader() -> Callable[[bytes], bytes]:
    """What runs in the sandbox."""
    return _answer


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder that is open during a look."""

    descriptor: int
    path: Path
    """How the agent can name it."""
    job: str
    """The job whose dumps are in it."""

    @property
    def identity(self) -> _Identity:
        status = os.fstat(self.descriptor)
        return status.st_dev, status.st_ino


class DumpDirectory:
    """Reads dumps that appear or change from now on; `prefix` is their path without the rank.

    They are also looked for at the same path in the file systems of the job's ranks: a container, and a job
    under SLURM's job_container/tmpfs, has a /tmp of its own, which ends with it.
    """

    def __init__(self, prefix: str, settings: Settings) -> None:
        path = Path(prefix)
        self._folder, self._name = path.parent, path.name
        self._settings = settings
        self._seen: dict[_Identity, dict[str, _Version]] = {}
        """By folder, what was there at the last look."""
        self._ignored: set[Path] = set()
        """Those of other users, which are logged once."""
        self._retry: set[tuple[_Identity, str]] = set()
        """Files that failed to be read once and are tried once more: they may have been incomplete."""
        with self._own_folder() as folder:
            if folder is not None:
                self._first_look(folder)

    def collect(self) -> list[Record]:
        """Progress of the ranks whose dumps are new; an event for each dump that cannot be read."""
        records: list[Record] = []
        looked: set[_Identity] = set()
        with closing(DumpReader(self._settings)) as reader, ExitStack() as folders:
            own = folders.enter_context(self._own_folder())
            for folder in ([] if own is None else [own]) + self._private_folders(folders):
                if folder.identity in looked:
                    continue
                looked.add(folder.identity)
                if folder is not own and folder.identity not in self._seen:
                    self._first_look(folder)
                self._look(folder, records, reader)
        self._seen = {identity: seen for identity, seen in self._seen.items() if identity in looked}
        self._retry = {key for key in self._retry if key[0] in looked}
        return records

    @contextmanager
    def _own_folder(self) -> Iterator[_Folder | None]:
        try:
            descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            yield None
            return
        try:
            yield _Folder(descriptor, self._folder, self._settings.job)
        finally:
            os.close(descriptor)

    def _private_folders(self, opened: ExitStack) -> list[_Folder]:
        """The folder as the job's ranks see it; several ranks see the same one."""
        if not self._folder.is_absolute():
            return []
        proc, found = self._settings.proc, []
        for rank in self._settings.local_jobs.ranks():
            root = proc / str(rank.pid) / "root"
            with suppress(OSError):
                descriptor = opened.enter_context(opened_inside(root, self._folder))
                path = root / self._folder.relative_to("/")
                found.append(_Folder(descriptor, path, rank.job))
        return found

    def _first_look(self, folder: _Folder) -> None:
        self._seen[folder.identity] = {name: version for name, version, _ in self._files(folder)}

    def _look(self, folder: _Folder, records: list[Record], reader: DumpReader) -> None:
        identity = folder.identity
        seen = self._seen.setdefault(identity, {})
        for name, version, rank in self._files(folder):
            path = folder.path / name
            if (foreign := self._foreign(folder, name)) is not None:
                self._ignore(path, foreign)
                continue
            known = seen.get(name) == version
            if known and (identity, name) not in self._retry:
                continue
            seen[name] = version
            self._retry.discard((identity, name))
            try:
                records += reader.read(Path(name), rank, job=folder.job, folder=folder.descriptor)
            except (OSError, FlightRecorderError) as error:
                if known or self._settings.ending.is_set():
                    records.append(self._unreadable(folder.job, path, rank, error))
                else:
                    # It may still be being written.
                    self._retry.add((identity, name))

    def _foreign(self, folder: _Folder, name: str) -> int | None:
        """The user of a dump who is not the job's; None for one that may be read.

        Anyone can write to a shared folder. Without a rank of the job on this node, only the agent's own
        user is believed.
        """
        try:
            owner = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False).st_uid
        except OSError:
            return None
        return None if owner in {self._settings.local_jobs.uid(folder.job), os.geteuid()} else owner

    def _ignore(self, path: Path, owner: int) -> None:
        if path not in self._ignored and len(self._ignored) < _MOST_IGNORED:
            self._ignored.add(path)
            log.warning(
                "A flight recorder dump is ignored: it is not of the job's user.",
                extra={"path": str(path), "uid": owner},
            )

    def _unreadable(self, job: str, path: Path, rank: int, error: Exception) -> Event:
        extra = {"path": str(path), "why": str(error)}
        log.warning("flight recorder dump skipped", extra=extra)
        return Event(
            kind=EventKind.DUMP_UNREADABLE,
            time_unix_ns=self._settings.clock.unix_ns(),
            message=f"The flight recorder dump of rank {rank} cannot be read: {reason_of(error)}.",
            job=job,
            rank=rank,
        )

    def _files(self, folder: _Folder) -> Iterator[tuple[str, _Version, int]]:
        try:
            names = sorted(os.listdir(folder.descriptor))  # noqa: PTH208  (a descriptor)
        except OSError:
            return
        for name in names:
            rank = _rank_of(name, self._name)
            if rank is None:
                continue
            try:
                status = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield name, (status.st_mtime_ns, status.st_size), rank


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
