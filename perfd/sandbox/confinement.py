"""What a process gives up for ever before it reads what others wrote."""

from __future__ import annotations

import ctypes
import os
import resource
from contextlib import suppress
from pathlib import Path

from perfd.sandbox.system_call_filter import filter_system_calls, forbid_new_privileges

_NOBODY = 65_534
"""The kernel's overflow user: no file is meant to be its own."""
_PR_SET_DUMPABLE = 4
"""Option of prctl(2)."""
_CAPABILITY_VERSION_3 = 0x20080522
"""Of the structures of capset(2) (linux/capability.h)."""
_MOST_MEMORY_BYTES = 1 << 30
"""Of data, as in RLIMIT_DATA. The largest dump that is read takes less than half. Chosen, not measured."""


_FIRST_VICTIM = "1000"


def confine() -> bool:
    """Give up user, groups, capabilities, files and system calls; whether the kernel filters system calls.

    Call it with one thread, after all imports. Raises `OSError` if anything but the filter fails.
    """
    with suppress(OSError):
        # Where memory is short, it ends before the agent does.
        Path("/proc/self/oom_score_adj").write_text(_FIRST_VICTIM, encoding="ascii")
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    if os.geteuid() == 0:
        _become_nobody()
    drop_capabilities()
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    forbid_new_privileges()
    return filter_system_calls()


def _become_nobody() -> None:
    try:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    except PermissionError:
        # Without CAP_SETUID it stays root, without a capability.
        return


def drop_capabilities(*, keep: int = 0) -> None:
    """Give up all capabilities but those of the mask `keep` (0 to 31), for ever; raises `OSError`."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    # Effective, permitted and inheritable ones, in two halves.
    left = (ctypes.c_uint32 * 6)(keep, keep)
    if ctypes.CDLL(None, use_errno=True).capset(header, left) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
