"""The kind of stream that perfd plays itself: `records`, batches as they went over the wire."""

from __future__ import annotations

import gzip
import shutil
import zlib
from collections.abc import Generator, Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path

from perfd.collector import Settings
from perfd.errors import RecordingError, WireError
from perfd.model import Batch, Record
from perfd.recording.recording_format import MANIFEST_NAME, Recording, StreamEntry
from perfd.wire.encoded_messages import decode_batch, encode_batch

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


def encode_item(records: Sequence[Record], unix_ns: int, sequence: int) -> bytes:
    """One item of the stream: the records that collectors returned at `unix_ns`."""
    return encode_batch(Batch(sequence=sequence, sent_unix_ns=unix_ns, records=records))


class RecordsStream:
    """Plays a `records` file: `collect` returns what is due by the clock of the settings.

    An item that cannot be decoded ends the stream. Without one before it, that is a `RecordingError`.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self._path = path
        self._clock = settings.clock
        self.damage: str | None = None
        """Why it ends early, once `span_unix_ns` has read it; None for a whole one."""
        self._items = self._sound()
        self._next = next(self._items, None)

    def span_unix_ns(self) -> tuple[int, int] | None:
        first = last = None
        for item in self._sound():
            first = item.sent_unix_ns if first is None else first
            last = item.sent_unix_ns
        return None if first is None or last is None else (first, max(first, last))

    def collect(self) -> Sequence[Record]:
        now_unix_ns = self._clock.unix_ns()
        due: list[Record] = []
        while self._next is not None and self._next.sent_unix_ns <= now_unix_ns:
            due.extend(self._next.records)
            self._next = None
            self._next = next(self._items, None)
        return due

    def close(self) -> None:
        self._items.close()

    def _sound(self) -> Generator[Batch, None, None]:
        """The items before one that cannot be decoded."""
        read = 0
        try:
            for item in items(self._path):
                read += 1
                yield item
        except RecordingError as error:
            if not read:
                raise
            self.damage = f"{error} It is replayed up to there, {read} batches."


def items(path: Path) -> Generator[Batch, None, None]:
    """The items of a `records` file; raises `RecordingError` at one that cannot be decoded."""
    if not path.stat().st_size:
        return  # Nothing to map.
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        while data.tell() < len(data):
            try:
                batch = decode_batch(data)
            except WireError as error:
                if data.tell() == len(data):
                    return  # The last item was cut off while it was written.
                reason = str(error).rstrip(".")
                raise RecordingError(
                    f"{path.name} holds an item that is not a batch of records: {reason}."
                ) from error
            if batch is not None:
                yield batch
