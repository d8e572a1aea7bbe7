"""Whether a file is a whole Kineto trace, and whether a GPU worked in it; without loading it all."""

from __future__ import annotations

import mmap
from enum import Enum
from pathlib import Path

import msgspec

from perfd.errors import CaptureError

_DECODED_BYTES = 128 * 1024 * 1024
"""Larger ones are only looked at: this runs on the training node."""
_TAIL_BYTES = 64 * 1024
_GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_MARKS = tuple(f'"cat": "{name}"'.encode() for name in _GPU_CATEGORIES)


class Work(Enum):
    """What is in a trace."""

    GPU = "gpu"
    """Kernels or copies."""
    HOST = "host"
    """Only what the host did."""
    NONE = "none"
    """Nothing, as of a process that is still importing PyTorch."""


class _Event(msgspec.Struct):
    cat: str = ""


class _Trace(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")


def work_in(path: Path) -> Work:
    """What the trace holds; raises `CaptureError` when it is not whole."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise CaptureError("The trace is empty.")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if len(content) <= _DECODED_BYTES:
                return _decoded(content)
            return _looked_at(content)


def _decoded(content: mmap.mmap) -> Work:
    try:
        trace = msgspec.json.decode(content, type=_Trace)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CaptureError(f"The trace is not whole: {error}.") from error
    categories = {event.cat for event in trace.events}
    if not categories.isdisjoint(_GPU_CATEGORIES):
        return Work.GPU
    return Work.HOST if any(categories) else Work.NONE


def _looked_at(content: mmap.mmap) -> Work:
    """What follows the last array of a whole trace are plain fields and the end of the object."""
    tail = content[-_TAIL_BYTES:]
    rest = tail.rpartition(b"]")[2].strip()
    try:
        msgspec.json.decode(b"{" + rest.removeprefix(b","))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CaptureError("The trace is not whole: its end is missing.") from error
    # One so large is not empty.
    return Work.GPU if any(content.find(mark) >= 0 for mark in _MARKS) else Work.HOST
