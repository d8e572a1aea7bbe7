"""Traces that are unpacked or exported before they are read: a separate module, as most need neither."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perfd.errors import TraceError, reason_of
from perfd.sandbox.confined_program import confined_command

MAX_UNPACKED_BYTES = 16 * 1024**3
"""A compressed export that unpacks to more than this is refused."""
EXPORT_TIMEOUT_S = 600.0
"""For nsys to export one report; then it is ended."""
_HEADER_BYTES, _SMALLEST_PAGE_BYTES, _LARGEST_PAGE_BYTES = 100, 512, 65_536
"""Of SQLite's file format."""
_COPY_BYTES = 4 * 1024 * 1024
"""Bytes unpacked between checks of the free disk space."""


def unpacked_start(path: Path, size_bytes: int) -> bytes:
    """The first bytes of what a file of gzip holds; raises `TraceError` when it is cut or damaged."""
    try:
        with gzip.open(path, "rb") as file:
            return file.read(size_bytes)
    except (EOFError, OSError, zlib.error) as error:
        raise TraceError(f"{path}: the compressed file is cut or damaged; copy it again.") from error


def database_bytes(path: Path) -> int | None:
    """How large the SQLite database in a file of gzip is, None if its header does not say that.

    Raises `TraceError` if it is none. Source: SQLite's file format, 1.3 (https://www.sqlite.org/fileformat.html).
    """
    header = unpacked_start(path, _HEADER_BYTES).ljust(_HEADER_BYTES, b"\0")
    page_bytes = int.from_bytes(header[16:18], "big")
    if page_bytes == 1:
        page_bytes = _LARGEST_PAGE_BYTES
    if page_bytes < _SMALLEST_PAGE_BYTES or page_bytes & (page_bytes - 1):
        raise TraceError(f"{path}: not an SQLite file: its header is damaged.")
    pages, changes, valid_for = (int.from_bytes(header[at : at + 4], "big") for at in (28, 24, 92))
    return pages * page_bytes if pages and changes == valid_for else None


@contextmanager
def unpacked(path: Path, used_bytes: int | None = None) -> Iterator[Path]:
    """The file without its compression, for as long as the context lasts; only its first `used_bytes`."""
    with tempfile.TemporaryDirectory(prefix="perfd-") as folder:
        target = Path(folder) / "export.sqlite"
        try:
            with gzip.open(path, "rb") as source, target.open("wb") as copy:
                while piece := source.read(_next_bytes(copy.tell(), used_bytes)):
                    if copy.tell() + len(piece) > MAX_UNPACKED_BYTES:
                        raise TraceError(f"{path}: it unpacks to more than {MAX_UNPACKED_BYTES} bytes.")
                    copy.write(piece)
        except (EOFError, OSError, zlib.error) as error:
            raise TraceError(f"{path}: cannot be unpacked: {error}.") from error
        yield target


def _next_bytes(done_bytes: int, used_bytes: int | None) -> int:
    return _COPY_BYTES if used_bytes is None else min(_COPY_BYTES, used_bytes - done_bytes)


@contextmanager
def exported(path: Path, nsys_program: str | None) -> Iterator[Path]:
    """The report as SQLite, for as long as the context lasts."""
    if nsys_program is None or shutil.which(nsys_program) is None:
        raise TraceError(
            f"{path}: reading a .nsys-rep file needs nsys; run"
            " `nsys export --type sqlite` where it is installed, and analyze the .sqlite file."
        )
    with tempfile.TemporaryDirectory(prefix="perfd-") as folder:
        target = Path(folder) / "export.sqlite"
        command = [nsys_program, "export", "--type", "sqlite", "--output", str(target)]
        # Blobs have NCCL's communicators and sizes; older versions do not know the option.
        for options in (["--include-blobs=true"], []):
            try:
                done = subprocess.run(  # noqa: PLW1510 - The file counts, not nsys' exit code.
                    confined_command(
                        [*command, *options, str(path.resolve())], read=[path], write=[Path(folder)]
                    ),
                    capture_output=True,
                    text=True,
                    timeout=EXPORT_TIMEOUT_S,
                )
            except OSError as error:
                raise TraceError(f"{path}: nsys cannot be run: {reason_of(error)}.") from error
            except subprocess.TimeoutExpired as error:
                raise TraceError(
                    f"{path}: nsys did not export the report within {EXPORT_TIMEOUT_S:.0f} s."
                ) from error
            if target.is_file():
                break
        else:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise TraceError(f"{path}: nsys did not export the report: {said[-1] if said else 'no reason'}.")
        yield target
