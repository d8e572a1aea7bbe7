"""Reads a snapshot of PyTorch's CUDA allocator: `torch.cuda.memory._dump_snapshot(FILE)`.

A snapshot is a pickle of plain data. `segments` are what the allocator holds at that moment, with the blocks
in them; `device_traces` are the events since `_record_memory_history()`, the newest `max_entries` of them.
Nothing in it is executed. (Source: torch/csrc/cuda/memory_snapshot.cpp of PyTorch 2.)
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfd.errors import PerfdError, TraceError
from perfd.safe_pickle import UnsafePickleError, loads

_MAX_BYTES = 256 << 20
"""Of an uncompressed snapshot. Decoded, Python needs some ten times as much."""
_MAX_INSTRUCTIONS = 32_000_000
"""Of the pickle: bounds the time to check it. Chosen."""
_MAX_SIZE = 1 << 50
"""Of a block, in bytes; more cannot be memory."""
_MAX_ADDRESS = 1 << 64
"""Addresses have 64 bits."""
_MAX_FRAMES = 64
"""Kept of a stack."""
_GZIP = b"\x1f\x8b"


class SnapshotError(PerfdError):
    """The content is not that of a snapshot; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class StackFrame:
    """A line of a stack."""

    file: str
    line: int
    function: str


Stack = tuple[StackFrame, ...]
"""The innermost frame first; empty for memory that no Python code asked for, as in a backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBlock:
    """A part of a segment; `allocated` while a tensor uses it."""

    address: int
    size_bytes: int
    requested_bytes: int
    allocated: bool
    stack: Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySegment:
    """Memory that the allocator got from CUDA."""

    size_bytes: int
    blocks: Sequence[MemoryBlock]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvent:
    """A change: `action` is PyTorch's name (`alloc`, `free_requested`, `segment_alloc`, `oom`, ...)."""

    action: str
    address: int
    size_bytes: int
    time_us: int
    stack: Stack
    device_free_bytes: int | None = None
    """CUDA's free memory when an allocation failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """One GPU of a snapshot."""

    device: int
    segments: Sequence[MemorySegment]
    events: Sequence[MemoryEvent]
    expandable_segments: bool
    """Whether the allocator can grow segments, so that free memory between blocks is of use."""


def read_snapshot(path: Path) -> list[DeviceMemory]:
    """The GPUs that a snapshot knows anything of, in order; raises `TraceError`, naming the file."""
    try:
        with path.open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
        with gzip.open(path) if packed else path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: the compressed file is cut or damaged; copy it again.") from error
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}.") from error
    try:
        return snapshot_of(data)
    except SnapshotError as error:
        raise TraceError(f"{path}: not a snapshot of PyTorch's memory: {error}.") from error


def snapshot_of(data: bytes) -> list[DeviceMemory]:
    """The same of the file's content; raises `SnapshotError` with the reason."""
    try:
        content = loads(data, max_bytes=_MAX_BYTES, max_instructions=_MAX_INSTRUCTIONS)
    except UnsafePickleError as error:
        raise SnapshotError(str(error)) from error
    if not isinstance(content, dict) or not isinstance(content.get("segments"), list):
        raise SnapshotError("it has no segments")
    reader = _Reader()
    settings = _mapping(content.get("allocator_settings"))
    segments: dict[int, list[MemorySegment]] = {}
    for entry in content["segments"]:
        mapping = _mapping(entry)
        device = mapping.get("device")
        if type(device) is int and 0 <= device < _MAX_SIZE:
            segments.setdefault(device, []).append(reader.segment(mapping))
    traces = content.get("device_traces")
    events = dict(enumerate(traces)) if isinstance(traces, list) else {}
    known = sorted({*segments, *(device for device, trace in events.items() if trace)})
    found = [
        DeviceMemory(
            device=device,
            segments=segments.get(device, ()),
            events=[event for one in _sequence(events.get(device)) if (event := reader.event(one))],
            expandable_segments=settings.get("expandable_segments") is True,
        )
        for device in known
    ]
    if not found:
        raise SnapshotError("it has neither memory nor events of any GPU")
    return found


class _Reader:
    """Reads entries; stacks are shared, as most are there often."""

    def __init__(self) -> None:
        self._stacks: dict[Stack, Stack] = {}
        self._frames: dict[tuple[str, int, str], StackFrame] = {}

    def segment(self, entry: Mapping[str, Any]) -> MemorySegment:
        address = _number(entry.get("address"), most=_MAX_ADDRESS)
        blocks = []
        for one in _sequence(entry.get("blocks")):
            mapping = _mapping(one)
            size = _number(mapping.get("size"))
            # Older versions give blocks no address: they follow each other.
            at = _number(mapping.get("address"), most=_MAX_ADDRESS) or address
            blocks.append(
                MemoryBlock(
                    address=at,
                    size_bytes=size,
                    requested_bytes=_number(mapping.get("requested_size")) or size,
                    allocated=mapping.get("state") == "active_allocated",
                    stack=self._stack(mapping.get("frames")),
                )
            )
            address = at + size
        return MemorySegment(size_bytes=_number(entry.get("total_size")), blocks=blocks)

    def event(self, entry: object) -> MemoryEvent | None:
        mapping = _mapping(entry)
        action = mapping.get("action")
        if not isinstance(action, str):
            return None
        free = mapping.get("device_free")
        return MemoryEvent(
            action=action,
            address=_number(mapping.get("addr"), most=_MAX_ADDRESS),
            size_bytes=_number(mapping.get("size")),
            time_us=_number(mapping.get("time_us"), most=1 << 62),
            stack=self._stack(mapping.get("frames")),
            device_free_bytes=None if free is None else _number(free),
        )

    def _stack(self, frames: object) -> Stack:
        stack = tuple(self._frame(frame) for frame in _sequence(frames)[:_MAX_FRAMES])
        return self._stacks.setdefault(stack, stack)

    def _frame(self, entry: object) -> StackFrame:
        mapping = _mapping(entry)
        key = (_text(mapping.get("filename")), _number(mapping.get("line")), _text(mapping.get("name")))
        return self._frames.setdefault(key, StackFrame(*key))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _number(value: object, *, most: int = _MAX_SIZE) -> int:
    """A whole number from 0 to below `most`, or 0 for anything else."""
    return value if type(value) is int and 0 <= value < most else 0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
