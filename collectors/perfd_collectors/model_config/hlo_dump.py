"""The modules that XLA dumps for a process with `--xla_dump_to`, and what a step of them computes."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from perfd.errors import PerfdError
from perfd.trace.roofline.hlo_module import HloModule, read_module
from perfd.trace.roofline.hlo_step import StepWork, step_work

_FOLDER = re.compile(r"(?:^|\s)--xla_dump_to=(\S+)")
_MODULE = "after_optimizations.txt"
_MOST_FILES = 4
"""Modules that are read, the largest files: a step, an evaluation, and what compiled again. Chosen."""
_MOST_BYTES = 16 << 20
"""Of one module: 3.3 s of CPU at 4.9 MB/s, measured with a module of 0.3 MB. Larger ones are not read."""
_MOST_LISTED = 100_000
"""Entries of the folder that are read: XLA writes some files per module."""

Opener = Callable[[Path], int]
"""Opens a file as whoever may read it; raises `OSError`."""
_Listing = Sequence[tuple[int, int, str]]
"""Size, time in nanoseconds and name of each module."""


def dump_folder(flags: str, working_directory: Path) -> Path | None:
    """Where `XLA_FLAGS` says that modules are dumped; the last one counts."""
    found = _FOLDER.findall(flags)
    return working_directory / found[-1] if found and found[-1] != "-" else None


class HloDump:
    """A process's dump, which grows while it compiles: read once nothing has come since the last look."""

    def __init__(self, folder: Path, since_unix_ns: int | None, opener: Opener, *, tf32: bool = True) -> None:
        self._folder = folder
        self._since_ns = since_unix_ns or 0
        self._open = opener
        self._tf32 = tf32
        """Whether the process may multiply f32 as TF32."""
        self._listed: _Listing = ()
        self._read: _Listing = ()
        self._work: StepWork | None = None

    def step(self) -> StepWork | None:
        """The work of a step on all devices; None while it is unknown."""
        before, self._listed = self._listed, self._list()
        if self._listed == before and self._listed != self._read:
            self._read = self._listed
            self._work = self._count()
        return self._work

    def _list(self) -> _Listing:
        found = []
        try:
            with os.scandir(self._folder) as entries:
                for entry in islice(entries, _MOST_LISTED):
                    if entry.name.endswith(_MODULE):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode) and status.st_mtime_ns >= self._since_ns:
                            found.append((status.st_size, status.st_mtime_ns, entry.name))
        except OSError:
            return ()
        return sorted(found, reverse=True)[:_MOST_FILES]

    def _count(self) -> StepWork | None:
        if not self._read or self._read[0][0] > _MOST_BYTES:
            return None
        try:
            work = step_work([self._module(name) for _, _, name in self._read])
        except (OSError, PerfdError):
            return None
        return (
            work
            if work is None or self._tf32 or work.precision != "tf32"
            else replace(work, precision="fp32")
        )

    def _module(self, name: str) -> HloModule:
        with open(self._open(self._folder / name), "rb") as file:  # noqa: PTH123  (a descriptor)
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(0, "it is not a file", name)
            return read_module(file.read(_MOST_BYTES).decode("utf-8", "replace"))
