"""What a recording is on disk: `recording.json` and the streams that it lists (docs/recordings.md)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePosixPath

import msgspec

from perfd.errors import RecordingError

FORMAT = 1
"""Format version of `recording.json`; others are refused."""
MANIFEST_NAME = "recording.json"
_SHOWN = 3
"""Recordings below a folder that the message names."""
RECORDS_KIND = "records"
TRAINING_LOG_KIND = "training-log"
TIMES_SUFFIX = ".times"


class RecordedGpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU of a node, by its NVML index."""

    index: int
    name: str = ""
    uuid: str | None = None
    memory_bytes: int | None = None
    max_sm_clock_hz: float | None = None


class RecordedRank(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank of the job on a node, and the GPU that it used."""

    rank: int
    local_rank: int | None = None
    gpu: int | None = None


class RecordedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the job."""

    name: str
    gpus: tuple[RecordedGpu, ...] = ()
    ranks: tuple[RecordedRank, ...] = ()


class Framework(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The training framework of the job."""

    name: str
    version: str | None = None


class StreamEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of a recording; `path` is relative to `recording.json`."""

    node: str
    kind: str
    path: str
    rank: int | None = None

    @property
    def compressed(self) -> bool:
        """Whether the file is gzip-compressed."""
        return self.path.endswith(".gz")

    @property
    def plain_path(self) -> str:
        """The path without `.gz`."""
        return self.path.removesuffix(".gz")

    @property
    def times_path(self) -> str:
        """Where the sidecar with the times of a log is, if there is one."""
        return self.plain_path + TIMES_SUFFIX


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `recording.json`. Unknown keys are ignored."""

    format: int
    name: str = ""
    start_unix_s: float | None = None
    world_size: int | None = None
    framework: Framework | None = None
    software: dict[str, str | None] = {}
    nodes: tuple[RecordedNode, ...] = ()
    streams: tuple[StreamEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recording that was opened: its streams are known to exist, but nothing of them was read."""

    directory: Path
    manifest: Manifest
    warnings: tuple[str, ...] = ()
    """What was left out, one sentence each."""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.manifest.name or self.directory.resolve().name

    def path_of(self, stream: StreamEntry) -> Path:
        """The file of a stream."""
        return self.directory / stream.path


def open_recording(directory: Path, *, allow_missing: bool = False) -> Recording:
    """Read `recording.json` and check that every stream is there.

    With `allow_missing`, streams without a file are left out with a warning.
    Raises `RecordingError` when there is nothing to play, or a file is missing.
    """
    manifest = _read_manifest(directory / MANIFEST_NAME)
    present: list[StreamEntry] = []
    missing: list[str] = []
    for stream in manifest.streams:
        _check_inside(directory, stream)
        if _is_file(directory / stream.path):
            present.append(stream)
        else:
            missing.append(stream.path)
    if missing and not allow_missing:
        raise RecordingError(
            f"{directory / MANIFEST_NAME} lists {', '.join(missing)}, which {_is_or_are(missing)} not there: "
            "restore what is missing, or play the rest with --allow-missing."
        )
    if not present:
        raise RecordingError(
            f"{directory / MANIFEST_NAME} lists no stream that exists: there is nothing to play."
        )
    return Recording(
        directory=directory,
        manifest=msgspec.structs.replace(manifest, streams=tuple(present)),
        warnings=tuple(f"{path} is missing and was skipped." for path in missing),
    )


def bundled(name: str) -> Path:
    """The folder of a recording that ships with perfd; raises `RecordingError` for an unknown name."""
    directory = _bundle_directory() / name
    if name not in bundled_names():
        known = ", ".join(bundled_names()) or "none"
        raise RecordingError(f"There is no bundled recording called {name!r}; there are: {known}.")
    return directory


def bundled_names() -> tuple[str, ...]:
    """The names of the recordings that ship with perfd."""
    return tuple(sorted(path.parent.name for path in _bundle_directory().glob(f"*/{MANIFEST_NAME}")))


def names_recording(path_or_name: str) -> bool:
    """Whether it is a recording's folder or, where there is no such file, the name of a bundled one."""
    path = Path(path_or_name)
    return (path / MANIFEST_NAME).is_file() or (not path.exists() and path_or_name in bundled_names())


def find_recording(path_or_name: str) -> Path:
    """The folder that a user meant: a path, or else a bundled recording's name."""
    path = Path(path_or_name)
    if path.name == MANIFEST_NAME and path.is_file():
        return path.parent
    if path.is_dir() or len(path.parts) != 1:
        return path
    if path_or_name in bundled_names():
        return bundled(path_or_name)
    names = bundled_names()
    alike = get_close_matches(path_or_name, names, 1)
    hint = f"did you mean {alike[0]}?" if alike else f"bundled: {', '.join(names) or 'none'}."
    raise RecordingError(
        f"{path_or_name!r} is neither a recording's folder nor the name of a bundled one; {hint}"
    )


def _read_manifest(path: Path) -> Manifest:
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        if not path.parent.exists():
            raise RecordingError(f"{path.parent} does not exist: check the path.") from error
        below = sorted(str(found.parent) for found in path.parent.glob(f"*/{MANIFEST_NAME}"))
        hint = f"; below it is {', '.join(below[:_SHOWN])}" if below else ""
        raise RecordingError(
            f"{path.parent} is not a recording: there is no {MANIFEST_NAME} in it, as `perfd record` and"
            f" `perfd run --record` write it{hint}."
        ) from error
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordingError(f"{path} does not describe a recording: {error}.") from error
    if manifest.format != FORMAT:
        raise RecordingError(
            f"{path} has format {manifest.format}, and this perfd reads format {FORMAT}: "
            "play it with the perfd that wrote it, or a newer one."
        )
    return manifest


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        # No file can have such a name.
        return False


def _check_inside(directory: Path, stream: StreamEntry) -> None:
    """Refuse a path that leaves the folder: recordings are sent around, and may be hostile."""
    pure = PurePosixPath(stream.path)
    inside = (
        not pure.is_absolute() and ".." not in pure.parts and "\0" not in stream.path and bool(pure.parts)
    )
    if inside:
        real = Path(os.path.realpath(directory / stream.path))
        inside = real.is_relative_to(os.path.realpath(directory))
    if not inside:
        raise RecordingError(
            f"{directory / MANIFEST_NAME} lists {stream.path!r}, which is not a path inside of the recording."
        )


def _bundle_directory() -> Path:
    return Path(__file__).parent.parent / "data" / "recordings"


def _is_or_are(items: list[str]) -> str:
    return "is" if len(items) == 1 else "are"
