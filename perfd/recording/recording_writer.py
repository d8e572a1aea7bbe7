"""Writes a recording while a job runs, so that a writer that is killed leaves a whole one."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from perfd.errors import RecordingError
from perfd.model import GpuInfo, JobDescription, RankPlacement, Record
from perfd.recording.recording_format import (
    FORMAT,
    MANIFEST_NAME,
    RECORDS_KIND,
    TIMES_SUFFIX,
    TRAINING_LOG_KIND,
    Framework,
    Manifest,
    RecordedGpu,
    RecordedNode,
    RecordedRank,
    StreamEntry,
)
from perfd.recording.records_stream import encode_item

T = TypeVar("T")

_TIMES_RESOLUTION_NS = 10_000_000
"""Lines that come within 10 ms share one note of their time."""
_LOG_NAME = "stdout.log"
_RECORDS_NAME = "records.bin"


class RecordingWriter:
    """Appends to the streams of one recording; any thread may call it.

    `directory` is made; raises `RecordingError` if something is in it already
    and, like every method, when the disk does not take what is written.
    """

    def __init__(self, directory: Path, *, name: str, start_unix_ns: int) -> None:
        self._directory = directory
        self._facts = _Facts(name=name, start_unix_ns=start_unix_ns)
        self._lock = threading.Lock()
        self._logs: dict[str, _LogFile] = {}
        self._records: dict[str, BinaryIO] = {}
        self._sequence = 0
        self._written: Manifest | None = None
        self._manifest_path = directory / MANIFEST_NAME
        try:
            directory.mkdir(parents=True, exist_ok=True)
            occupied = any(directory.iterdir())
        except OSError as error:
            raise _not_written(directory, error) from error
        if occupied:
            raise RecordingError(f"{directory} is not empty: a recording needs a new folder.")

    def add_log(self, node: str, chunk: bytes, unix_ns: int) -> None:
        """Append what the job printed up to `unix_ns`."""
        with self._lock, _Writing(self._directory):
            if node not in self._logs:
                self._logs[node] = _LogFile(self._new_file(node, TRAINING_LOG_KIND, _LOG_NAME))
                self._write_manifest()
            self._logs[node].append(chunk, unix_ns)

    def add_records(self, node: str, records: Sequence[Record], unix_ns: int) -> None:
        """Append what collectors returned at `unix_ns`."""
        if not records:
            return
        with self._lock, _Writing(self._directory):
            if node not in self._records:
                self._records[node] = self._new_file(node, RECORDS_KIND, _RECORDS_NAME).open("wb")
            self._sequence += 1
            self._records[node].write(encode_item(records, unix_ns, self._sequence))
            self._records[node].flush()
            self._facts.learn(node, records)
            self._write_manifest()

    def describe(self, node: str, records: Sequence[Record]) -> None:
        """Take from `records` what `recording.json` says, without storing them."""
        with self._lock, _Writing(self._directory):
            self._facts.learn(node, records)
            self._write_manifest()

    def close(self) -> None:
        """Write what is pending and free the files; legal twice."""
        with self._lock, _Writing(self._directory):
            removed = self._written is not None and not self._manifest_path.exists()
            for log in self._logs.values():
                log.close()
            for file in self._records.values():
                file.close()
            self._logs.clear()
            self._records.clear()
            if removed:
                raise RecordingError(f"The recording {self._directory} was removed while it was written.")
            self._write_manifest()

    def _new_file(self, node: str, kind: str, name: str) -> Path:
        folder = _folder_name(node, taken=self._facts.folders)
        stream = StreamEntry(node=node, kind=kind, path=f"{folder}/{name}")
        (self._directory / folder).mkdir(exist_ok=True)
        self._facts.streams.append(stream)
        return self._directory / stream.path

    def _write_manifest(self) -> None:
        manifest = self._facts.manifest()
        if manifest == self._written:
            return
        content = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
        temporary = self._directory / f"{MANIFEST_NAME}.tmp"
        temporary.write_bytes(content)
        temporary.replace(self._manifest_path)
        self._written = manifest


class _Facts:
    """What `recording.json` will say, gathered from what was recorded."""

    def __init__(self, *, name: str, start_unix_ns: int) -> None:
        self.streams: list[StreamEntry] = []
        self.folders: dict[str, str] = {}
        self._name = name
        self._start_unix_s = start_unix_ns / 1e9
        self._world_size: int | None = None
        self._framework: Framework | None = None
        self._gpus: dict[str, dict[int, RecordedGpu]] = {}
        self._ranks: dict[str, dict[int, RecordedRank]] = {}

    def learn(self, node: str, records: Iterable[Record]) -> None:
        for record in records:
            match record:
                case GpuInfo():
                    # A slice of a GPU has its parent's index, and is only in the `records` stream.
                    if not record.mig:
                        self._gpus.setdefault(node, {})[record.index] = _gpu(record)
                case RankPlacement():
                    self._world_size = record.world_size or self._world_size
                    self._ranks.setdefault(node, {})[record.rank] = RecordedRank(
                        rank=record.rank, local_rank=record.local_rank, gpu=record.gpu
                    )
                case JobDescription():
                    self._world_size = record.parallel.world_size or self._world_size
                    self._framework = Framework(name=record.framework, version=record.framework_version)

    def manifest(self) -> Manifest:
        names = dict.fromkeys([*self.folders, *self._gpus, *self._ranks])
        return Manifest(
            format=FORMAT,
            name=self._name,
            start_unix_s=self._start_unix_s,
            world_size=self._world_size,
            framework=self._framework,
            nodes=tuple(
                RecordedNode(
                    name=node,
                    gpus=_in_order(self._gpus.get(node, {})),
                    ranks=_in_order(self._ranks.get(node, {})),
                )
                for node in names
            ),
            streams=tuple(self.streams),
        )


def _gpu(info: GpuInfo) -> RecordedGpu:
    return RecordedGpu(
        index=info.index,
        name=info.name,
        uuid=info.uuid,
        memory_bytes=info.memory_bytes,
        max_sm_clock_hz=info.max_sm_clock_hz,
    )


class _LogFile:
    """The bytes of a log, and beside them how many had been printed when."""

    def __init__(self, path: Path) -> None:
        self._log = path.open("wb")
        self._times = path.with_name(path.name + TIMES_SUFFIX).open("w", encoding="ascii")
        self._size = 0
        self._noted = 0
        self._note_unix_ns = 0

    def append(self, chunk: bytes, unix_ns: int) -> None:
        # Chunks that come within the resolution share a line, which keeps the sidecar of a
        # job that prints letter by letter small.
        if unix_ns - self._note_unix_ns > _TIMES_RESOLUTION_NS:
            self._note()
            self._note_unix_ns = unix_ns
        self._log.write(chunk)
        self._log.flush()
        self._size += len(chunk)

    def close(self) -> None:
        self._note()
        self._log.close()
        self._times.close()

    def _note(self) -> None:
        if self._size > self._noted:
            self._times.write(f"{self._note_unix_ns / 1e9:.6f} {self._size}\n")
            self._times.flush()
            self._noted = self._size


class _Writing:
    """Turns what the system says about the disk into a sentence."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise _not_written(self._directory, error) from error


def _not_written(directory: Path, error: OSError) -> RecordingError:
    return RecordingError(
        f"The recording {directory} cannot be written ({error.strerror or error}): "
        "choose a folder on a disk with room."
    )


def _folder_name(node: str, taken: dict[str, str]) -> str:
    """A folder for a node: its name if that is a safe one, else one made of it."""
    if node not in taken:
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in node).lstrip(".") or "node"
        while safe in taken.values():
            safe += "_"
        taken[node] = safe
    return taken[node]


def _in_order(items: Mapping[int, T]) -> tuple[T, ...]:
    return tuple(items[key] for key in sorted(items))
