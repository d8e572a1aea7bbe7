"""The protocol of the pipe from `perfd run` to its monitor: the job's output, and how the job ended.

A frame is a header (kind, time, length) and that many bytes. The end of the pipe
without an `ENDED` frame means that `perfd run` itself was killed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import BinaryIO

_HEADER = struct.Struct("<BqI")


class FrameKind(IntEnum):
    """Kinds of frames."""

    SETTINGS = 0
    """JSON of `MonitorSettings`; always the first frame."""
    STDOUT = 1
    STDERR = 2
    STARTED = 3
    """The process id of the job, in decimal."""
    DROPPED = 4
    """Bytes of output dropped here, in decimal: the monitor did not keep up."""
    ENDED = 5
    """The exit code of the job, in decimal."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message; its kind defines `payload`."""

    kind: FrameKind
    unix_ns: int
    payload: bytes


def header(kind: FrameKind, unix_ns: int, length: int) -> bytes:
    """The header of a payload of `length` bytes."""
    return _HEADER.pack(kind, unix_ns, length)


def read_frames(pipe: BinaryIO) -> Iterator[Frame]:
    """The frames of a buffered binary file; an incomplete last frame is dropped."""
    while len(head := pipe.read(_HEADER.size)) == _HEADER.size:
        kind, unix_ns, length = _HEADER.unpack(head)
        payload = pipe.read(length)
        if len(payload) < length:
            return
        yield Frame(FrameKind(kind), unix_ns, payload)
