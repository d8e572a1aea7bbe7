"""Memory that a round gives back is kept for the next one."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 64 << 20
_LARGEST_BYTES = 32 << 20
"""The most that glibc takes from its heaps on 64 bits; larger arrays always go back to the kernel."""


def keep_freed_memory() -> bool:
    """Have this process keep up to 64 MiB that it has freed; False where the C library cannot.

    A round on thousands of ranks makes and drops some 20 MB of arrays. glibc gives them back to the kernel,
    and to get each page anew costs more than what is computed with it (mallopt(3)).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))
