"""The files that a job's processes on this node write to, whatever options or redirection named them."""

from __future__ import annotations

import contextlib
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from perfd.clock import Clock
from perfd.file_access import open_as, open_as_owner

LOOK_EVERY_S = 3.0
"""Between two looks at all processes. Chosen, not measured."""
MOST_FILES = 64
"""Files of a job on one node: those of 8 ranks and their launchers many times over."""
OWN_PROCESS = b"PERFD_OWN_PROCESS="
"""In the environment of what perfd itself runs within a job; their output is not a training log."""
_STANDARD = ("1", "2")
_WRITERS = frozenset({"srun", "tee"})
"""Programs that write what others print, to files of their own beside their standard output."""
_MOST_DESCRIPTORS = 256
"""Most file descriptors checked per process; its output is among the first."""
_TEXT_BYTES = 4096
"""How much of a file's start is read to distinguish text from binary data."""
_WRITES = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProcesses:
    """Which processes are a job's: those of its user with its number, and no other."""

    job: str
    """The value of SLURM_JOB_ID, which an array's task and all parts of a heterogeneous job have too."""
    uid: int

    def includes(self, environ: bytes) -> bool:
        """Whether a process of the user, with this /proc/PID/environ, is the job's and not perfd's own."""
        variables = environ.split(b"\0")
        own = any(one.startswith(OWN_PROCESS) for one in variables)
        return not own and b"SLURM_JOB_ID=" + self.job.encode() in variables

    def folders(self, proc: Path) -> Iterator[Path]:
        """The folders in /proc of the job's processes."""
        for entry in os.scandir(proc):
            if not entry.name.isdigit():
                continue
            process = Path(entry.path)
            # A process may end at any moment.
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == self.uid and self.includes((process / "environ").read_bytes()):
                    yield process


class FoundFiles(ABC):
    """Files by name, looked for again after a while, and kept while their names lead to them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_s = float("-inf")
        self._found: dict[str, Path] = {}

    def __call__(self) -> Mapping[str, Path]:
        """The files by name; a name that only the job's container has leads through its process."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._due_s:
            self._due_s = now_s + self._pause_s(now_s)
            for name, path in list(self._found.items()):
                if not path.is_file():
                    del self._found[name]
            self._look()
        return self._found

    def _pause_s(self, now_s: float) -> float:  # noqa: ARG002  (for those that look less often later)
        """From this look to the next one."""
        return LOOK_EVERY_S

    @abstractmethod
    def _look(self) -> None:
        """Add what is found now."""


class JobOutput(FoundFiles):
    """Finds regular files of text that are standard output or error of a job's processes.

    Of `srun` and `tee` all files that they write: what others print. A
    file stays found while its name leads to it, as one that a finished process wrote.
    """

    def __init__(self, proc: Path, processes: JobProcesses, clock: Clock) -> None:
        super().__init__(clock)
        self._proc = proc
        self._processes = processes

    def _look(self) -> None:
        written: dict[str, Path] = {}
        for link in self._links():
            with contextlib.suppress(OSError):
                written.setdefault(str(link.readlink()), link)
        for name, link in sorted(written.items()):
            with contextlib.suppress(OSError):
                if name not in self._found and len(self._found) < MOST_FILES and self._is_text(link):
                    self._found[name] = own_name(name, link)

    def _links(self) -> Iterator[Path]:
        """Descriptors of regular files that the job's processes write to."""
        for process in self._processes.folders(self._proc):
            with contextlib.suppress(OSError):
                yield from (link for link in _descriptors(process) if is_written(process, link))

    def _is_text(self, link: Path) -> bool:
        """Whether there is something, and it is not an archive or checkpoint, which would be much to read."""
        descriptor = open_as(self._processes.uid, link, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            start = os.pread(descriptor, _TEXT_BYTES, 0)
        finally:
            os.close(descriptor)
        return bool(start) and b"\0" not in start


def _descriptors(process: Path) -> Iterator[Path]:
    writes_for_others = (process / "comm").read_text().rstrip() in _WRITERS
    names = [entry.name for entry in os.scandir(process / "fd")] if writes_for_others else list(_STANDARD)
    for name in names[:_MOST_DESCRIPTORS]:
        yield process / "fd" / name


def is_written(process: Path, link: Path) -> bool:
    """Whether a process writes to a regular file by this descriptor."""
    try:
        if not stat.S_ISREG(link.stat().st_mode):
            return False
        information = (process / "fdinfo" / link.name).read_text()
    except OSError:
        return False
    flags = next((line.split()[1] for line in information.splitlines() if line.startswith("flags:")), "0")
    return bool(int(flags, 8) & _WRITES)


def own_name(name: str, link: Path) -> Path:
    """The file's own name if it leads to the same file here; raises `OSError`."""
    path = Path(name)
    with contextlib.suppress(OSError):
        descriptor = open_as_owner(path)
        try:
            if os.path.samestat(os.fstat(descriptor), link.stat()):
                return path
        finally:
            os.close(descriptor)
    return link
