"""Plain files out of compressed streams, so that no collector has to know about compression."""

from __future__ import annotations

import gzip
import shutil
import zlib
from pathlib import Path

from perfd.errors import RecordingError
from perfd.recording.recording_format import MANIFEST_NAME, Recording, StreamEntry

MAX_UNPACKED_BYTES = 8 * 1024**3
"""A bound against archives made to fill the disk; a day of 8 GPUs at 10 Hz is about 4 GiB."""

_CHUNK_BYTES = 1024 * 1024
"""Size of one read, so that a large stream needs little memory."""
_GZIP_MAGIC = b"\x1f\x8b"


def plain_file(recording: Recording, stream: StreamEntry, scratch: Path) -> tuple[Path, str | None]:
    """A file with the stream's uncompressed bytes, and a warning if it is damaged.

    An uncompressed stream is its own file; a compressed one is written below
    `scratch`, with its surroundings as in the recording: the sidecar of its times
    beside it, `recording.json` above it. Of a cut or damaged file, what comes
    before the damage is there.
    """
    source = recording.path_of(stream)
    if not stream.compressed:
        return source, None
    target = scratch / stream.plain_path
    target.parent.mkdir(parents=True, exist_ok=True)
    warning = _unpack(source, target)
    for neighbour in (stream.times_path, MANIFEST_NAME):
        if (recording.directory / neighbour).is_file():
            shutil.copyfile(recording.directory / neighbour, scratch / neighbour)
    return target, warning


def _unpack(source: Path, target: Path) -> str | None:
    size = 0
    with source.open("rb") as probe:
        magic = probe.read(len(_GZIP_MAGIC))
    if magic and magic != _GZIP_MAGIC[: len(magic)]:
        raise RecordingError(f"{source} is not gzip-compressed, although its name ends in .gz: rename it.")
    with target.open("wb") as plain:
        try:
            with gzip.open(source, "rb") as packed:
                while chunk := packed.read1(_CHUNK_BYTES):
                    size += len(chunk)
                    if size > MAX_UNPACKED_BYTES:
                        raise RecordingError(f"{source} unpacks to more than {MAX_UNPACKED_BYTES >> 30} GiB.")
                    plain.write(chunk)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            return f"{source.name} is damaged ({error}); it is replayed up to there, {size} bytes."
    return None
