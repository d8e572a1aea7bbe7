"""Files that a user names: how large one may be that is read into memory, and where output may go."""

from __future__ import annotations

import stat
from pathlib import Path

from perfd.errors import PerfdError
from perfd.formatting import data_size


def read_bounded(path: Path, most_bytes: int, expected: str) -> bytes:
    """The content of a file, pipe or device of at most so many bytes; raises `OSError`, or `PerfdError`.

    `expected` is what the file should be, as `a job summary`.
    """
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise too_large(path, most_bytes, expected)
    return data


def require_bounded(path: Path, most_bytes: int, expected: str) -> None:
    """The same check of a file that is read more than once, which rules out pipes and devices.

    Raises `OSError`, or `PerfdError`.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise PerfdError(f"{path}: this is a pipe or a device; write {expected} to a file first.")
    if status.st_size > most_bytes:
        raise too_large(path, most_bytes, expected)


def too_large(path: Path, most_bytes: int, expected: str) -> PerfdError:
    """What is said of a file that is larger."""
    return PerfdError(f"{path}: it is larger than {data_size(most_bytes)}; is it {expected}?")


def refuse_pipe(path: Path) -> None:
    """Raise `PerfdError` if output would go to a named pipe, which blocks until someone reads it."""
    try:
        is_pipe = stat.S_ISFIFO(path.lstat().st_mode)
    except OSError:
        # There is nothing yet, or the write says why it cannot be.
        return
    if is_pipe:
        raise PerfdError(f"{path}: this is a named pipe; name a file to write.")
