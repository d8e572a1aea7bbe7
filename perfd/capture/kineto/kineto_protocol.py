"""The datagrams between libkineto and its daemon: bytes to records and back, no I/O.

A frame is a header of 40 bytes (payload size as u64, type as 32 bytes padded with NULs) and the payload, all
little endian, as in libkineto's IpcFabricConfigClient and dynolog's ipcfabric.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

MAX_FRAME_BYTES = 4096
"""A request has at most 11 pids, which is 100 bytes."""
_HEADER = struct.Struct("<Q32s")
_CONTEXT = struct.Struct("<iiq")
_REQUEST = struct.Struct("<iiq")
_COUNT = struct.Struct("<i")
_PID = struct.Struct("<i")
_MAX_PIDS = 64
"""Of a client: its process and those above it, one per PID namespace and shell."""
_ACTIVITIES = 2
"""The type bit of a client whose activity profiler would take a configuration now. libkineto of torch 2.13
sends 3 when idle and 1 when busy, later ones 2 and 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRequest:
    """A client registers; the answer is the number of the daemon's clients on its GPU."""

    gpu: int
    pid: int
    job_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigPoll:
    """A client polls for a configuration. Pids are those of its own namespace."""

    types: int
    job_id: int
    pids: Sequence[int]
    """Its own first, then its ancestors; never empty."""

    @property
    def idle(self) -> bool:
        """Whether its profiler would accept a trace."""
        return bool(self.types & _ACTIVITIES)


Message: TypeAlias = ContextRequest | ConfigPoll


def decode(datagram: bytes) -> Message | None:
    """A client's message; None for anything but a complete, well-formed frame of a known type."""
    if len(datagram) < _HEADER.size:
        return None
    size, kind = _HEADER.unpack_from(datagram)
    payload = datagram[_HEADER.size :]
    if size != len(payload):
        return None
    # dynolog compares only the beginning of the type.
    if kind.startswith(b"ctxt"):
        return _context(payload)
    return _poll(payload) if kind.startswith(b"req") else None


def encode(message: Message) -> bytes:
    """The datagram that a client sends."""
    if isinstance(message, ContextRequest):
        return _frame(b"ctxt", _CONTEXT.pack(message.gpu, message.pid, message.job_id))
    pids = b"".join(_PID.pack(pid) for pid in message.pids)
    return _frame(b"req", _REQUEST.pack(message.types, len(message.pids), message.job_id) + pids)


def context_reply(count: int) -> bytes:
    """The answer to `ContextRequest`."""
    return _frame(b"ctxt", _COUNT.pack(count))


def poll_reply(configuration: str) -> bytes:
    """The answer to `ConfigPoll`: the text of a configuration, or empty."""
    return _frame(b"req", configuration.encode())


def _frame(kind: bytes, payload: bytes) -> bytes:
    return _HEADER.pack(len(payload), kind) + payload


def _context(payload: bytes) -> ContextRequest | None:
    if len(payload) != _CONTEXT.size:
        return None
    gpu, pid, job_id = _CONTEXT.unpack(payload)
    return ContextRequest(gpu=gpu, pid=pid, job_id=job_id)


def _poll(payload: bytes) -> ConfigPoll | None:
    if len(payload) < _REQUEST.size:
        return None
    types, count, job_id = _REQUEST.unpack_from(payload)
    if not 0 < count <= _MAX_PIDS or len(payload) != _REQUEST.size + count * _PID.size:
        return None
    pids = tuple(pid for (pid,) in _PID.iter_unpack(payload[_REQUEST.size :]))
    return ConfigPoll(types=types, job_id=job_id, pids=pids)
