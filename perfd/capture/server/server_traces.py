"""An inference server's traces in a folder: which are new, and whether they are complete."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from perfd.clock import Clock

OWN_FOLDER = "perfd-"
_PATTERNS = ("*.trace.json.gz", "*.trace.json")
_FRONTEND = ".async_llm."
"""vLLM's API process traces itself too: it has no GPU."""
_POLL_S = 0.2
"""Between looks at the folder."""
_SETTLED_S = 1.0
"""Files that have not grown for so long are complete, if their ends are."""
_READ_BYTES = 1 << 20
"""A block of a file that is checked, so that a large one needs little memory."""


def own_folder(directory: Path, name: str) -> Path:
    """A folder below `directory` into which the server can write as any user."""
    folder = directory / f"{OWN_FOLDER}{name}"
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        owner = directory.stat()
        os.chown(folder, owner.st_uid, owner.st_gid)
    return folder


def remove_own_folders(directory: Path) -> None:
    """Remove what captures left in a folder of traces; an agent has one capture at a time."""
    with suppress(OSError):
        for folder in directory.glob(f"{OWN_FOLDER}*"):
            if folder.is_dir() and not folder.is_symlink():
                shutil.rmtree(folder, ignore_errors=True)


def fresh(folder: Path, since_unix_s: float) -> Mapping[Path, int]:
    """Traces of GPU processes that were written since a moment, with their sizes."""
    found: dict[Path, int] = {}
    for pattern in _PATTERNS:
        for file in folder.glob(pattern):
            # A file may be renamed or removed meanwhile.
            with suppress(OSError):
                state = file.lstat()
                # File systems keep times more coarsely than the clock does.
                new = state.st_mtime >= since_unix_s - 1.0 and state.st_size > 0
                if new and stat.S_ISREG(state.st_mode) and _FRONTEND not in file.name:
                    found[file] = state.st_size
    return found


def settled(
    folder: Path, since_unix_s: float, clock: Clock, deadline_s: float, expected: int | None = None
) -> Mapping[Path, int]:
    """The new traces once none grows and all are complete, or the existing ones at `deadline_s`.

    Ranks write at their own pace, in place; with `expected` it waits for this number.
    """
    before: Mapping[Path, int] = {}
    steady_since_s = clock.monotonic_s()
    while True:
        now_s, found = clock.monotonic_s(), fresh(folder, since_unix_s)
        if found != before:
            before, steady_since_s = found, now_s
        enough = bool(found) and len(found) >= (expected or 1)
        if enough and now_s - steady_since_s >= _SETTLED_S and all(map(whole, found)):
            return found
        if now_s >= deadline_s:
            return found
        clock.sleep(_POLL_S)


def whole(path: Path) -> bool:
    """Whether a trace has a proper end: its compression, and its JSON."""
    tail = b""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                tail = (tail + piece)[-64:]
    except (OSError, EOFError, zlib.error):
        return False
    return tail.rstrip().endswith((b"}", b"]"))


def brought(files: Sequence[Path], directory: Path) -> list[Path]:
    """The files, moved to the capture's folder; originals that cannot be removed stay."""
    moved = []
    for file in sorted(files):
        target = directory / file.name
        shutil.copyfile(file, target)
        with suppress(OSError):
            file.unlink()
        moved.append(target)
    return moved
