"""What a file says of the memory of GPUs: a snapshot of PyTorch's allocator or a trace, by what is in it."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from perfd.errors import TraceError
from perfd.trace.memory.allocation_history import AllocationHistory, replay, replay_profile
from perfd.trace.memory.memory_snapshot import read_snapshot
from perfd.trace.memory.profiled_memory import read_profiled_memory

_GZIP = b"\x1f\x8b"
_SNIFFED_BYTES = 64
"""Enough for the first instructions of a pickle, or the first brace of JSON."""


def memory_of(path: Path) -> list[AllocationHistory]:
    """One for each GPU that the file knows anything of; raises `TraceError`, naming the file."""
    if _start(path).lstrip()[:1] in {b"{", b"["}:
        return [replay_profile(memory) for memory in read_profiled_memory(path)]
    return [replay(memory) for memory in read_snapshot(path)]


def _start(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
        with gzip.open(path) if packed else path.open("rb") as file:
            return file.read(_SNIFFED_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: the compressed file is cut or damaged; copy it again.") from error
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}.") from error
