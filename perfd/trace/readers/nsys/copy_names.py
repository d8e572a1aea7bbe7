"""Names of copies in exports of Nsight Systems, which have numbers for direction and kinds of memory."""

from __future__ import annotations

_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_MEMORY_KINDS = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}


def copy_name(key: int) -> str:
    """As PyTorch names them, so that the tables of both profilers read alike."""
    copy, source, target = key >> 16, key >> 8 & 0xFF, key & 0xFF
    ends = f"{_MEMORY_KINDS.get(source, '?')} -> {_MEMORY_KINDS.get(target, '?')}"
    return f"Memcpy {_COPY_KINDS.get(copy, '')} ({ends})".replace("  ", " ")
