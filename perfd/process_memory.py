"""How this process's memory is kept, reserved and searched for garbage, by glibc and by Python."""

from __future__ import annotations

import ctypes
import gc

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3), by glibc's malloc.h."""
_KEPT_BYTES = 64 << 20
"""Free memory that the process keeps, rather than asking the kernel again each round. Chosen."""
_LARGEST_BYTES = 32 << 20
"""The most that glibc takes from its heaps on 64 bits; larger arrays always go back to the kernel."""
_ARENAS = 2
"""Python's interpreter lets one thread run at a time; the second one is for those of gRPC."""

_COLLECT_AFTER = 20_000, 20, 20
"""Objects, and collections of the younger generation. The series of 1,000 nodes are half a million objects,
which last: with Python's 700, 10 and 10 the collector took 5% of the CPU time of rounds, 0.14 s of one."""


def tune_memory() -> None:
    """What an aggregator sets at its start: `tune_malloc`, and a collector of garbage that runs rarely."""
    tune_malloc()
    gc.set_threshold(*_COLLECT_AFTER)


def tune_malloc() -> bool:
    """Have this process keep up to 64 MiB that it has freed, in two arenas; False where the C library cannot.

    A round on thousands of ranks makes and drops some 20 MB of arrays. glibc gives them back to the kernel,
    and to get each page anew costs more than what is computed with it. Each further arena, up to eight per
    core, reserves 64 MiB of addresses: under a limit on these (`ulimit -v`) threads could not start.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    options = ((_MMAP_THRESHOLD, _LARGEST_BYTES), (_TRIM_THRESHOLD, _KEPT_BYTES), (_ARENA_MAX, _ARENAS))
    return all(mallopt(option, value) for option, value in options)
