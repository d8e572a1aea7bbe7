"""The pipe from `perfd run` to its monitor: what the job printed, and what became of it.

One frame is a header (kind, time, length) and that many bytes. The end of the
pipe without an `ENDED` frame means that `perfd run` itself was killed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import BinaryIO

_HEADER = struct.Struct("<BqI")


class FrameKind(IntEnum):
    """What a frame carries."""

    SETTINGS = 0
    """JSON of `MonitorSettings`; always the first frame."""
    STDOUT = 1
    STDERR = 2
    STARTED = 3
    """The process id of the job, in decimal."""
    DROPPED = 4
    """How many bytes of output were left out here, in decimal: the monitor did not keep up."""
    ENDED = 5
    """The exit code of the job, in decimal."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message; `payload` is what its kind says."""

    kind: FrameKind
    unix_ns: int
    payload: bytes


def header(kind: FrameKind, unix_ns: int, length: int) -> bytes:
    """What is written before a payload of `length` bytes."""
    return _HEADER.pack(kind, unix_ns, length)


def read_frames(pipe: BinaryIO) -> Iterator[Frame]:
    """Each frame of a buffered binary file, until its end; a frame that is cut is left out."""
    while len(head := pipe.read(_HEADER.size)) == _HEADER.size:
        kind, unix_ns, length = _HEADER.unpack(head)
        payload = pipe.read(length)
        if len(payload) < length:
            return
        yield Frame(FrameKind(kind), unix_ns, payload)
