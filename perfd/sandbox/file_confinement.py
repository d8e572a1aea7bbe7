"""What a process gives up before it reads files of others, and still may write its results."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from perfd.sandbox.confinement import drop_capabilities
from perfd.sandbox.system_call_filter import deny_system_calls, forbid_new_privileges

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""System calls of Landlock (landlock(7)), with the same numbers on all architectures."""
_VERSION, _PATH_BENEATH = 1, 1
"""Flag that asks for the version, and type of a rule (linux/landlock.h)."""
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
"""Rights (linux/landlock.h)."""
_RIGHTS_BY_VERSION = (13, 14, 15, 15, 16)
"""How many rights for files each version knows; later ones know no more of them."""
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
"""Those that can be given for something that is not a folder: also to truncate, and ioctl."""
_TO_READ = _READ_FILE | _READ_DIR
_NOT_WRITTEN = _EXECUTE | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 15
"""A result is not a program, device, socket, pipe or link, and no device is controlled."""
_BENEATH = struct.Struct("=Qi")
_RULES = struct.Struct("=Q")
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/null",
    "/dev/urandom",
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/sys/devices/system",
    "/sys/fs/cgroup",
)
"""What Python and its libraries read."""
_SYSTEM_PROGRAMS = ("/bin", "/sbin")
"""On systems where these are not links into /usr."""
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
"""Numbers of capabilities that pass over files' permissions (linux/capability.h)."""


def confine_to_files(
    read: Iterable[Path],
    write: Iterable[Path] = (),
    *,
    programs: Iterable[Path] | None = None,
    temporary: bool = True,
) -> bool:
    """Permanently limit this thread to these files; it may create files in the folders in `write`.

    Python's own files stay readable, and temporary files can be created if `temporary`. Landlock (Linux 5.13)
    limits files; a system call filter prevents starting programs, using the network, accessing other
    processes, and changing owners or modes. With `programs`, programs in these paths and the system's can be
    started, and inherit the limits. Applies each mechanism that the kernel supports; returns whether it
    supports both.
    """
    forbid_new_privileges()
    if os.geteuid() == 0:
        # Root reads the files of users, and its results may be for one.
        drop_capabilities(keep=1 << _CAP_DAC_OVERRIDE | 1 << _CAP_DAC_READ_SEARCH)
    python = [Path(name) for name in (*_SYSTEM, sys.prefix, sys.base_prefix, *filter(None, sys.path))]
    folders = [*write, Path(tempfile.gettempdir())] if temporary else list(write)
    started = [] if programs is None else [*programs, *python, *map(Path, _SYSTEM_PROGRAMS)]
    restricted = _restrict([*read, *python, Path(__file__).parents[2]], folders, started)
    return deny_system_calls(programs=programs is not None) and restricted


def _restrict(read: Sequence[Path], write: Sequence[Path], started: Sequence[Path]) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        return False
    every = (1 << _RIGHTS_BY_VERSION[min(version, len(_RIGHTS_BY_VERSION)) - 1]) - 1
    handled = _RULES.pack(every)
    rules = libc.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    if rules < 0:
        return False
    try:
        limits = ((read, _TO_READ), (started, _TO_READ | _EXECUTE), (write, every & ~_NOT_WRITTEN))
        for paths, rights in limits:
            for path in paths:
                _allow(libc, rules, path, rights)
        return bool(libc.syscall(_RESTRICT_SELF, rules, 0) == 0)
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: Path, rights: int) -> None:
    # What is not there cannot be read.
    with suppress(OSError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            rule = _BENEATH.pack(rights if folder else rights & _OF_FILES, descriptor)
            libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0)
        finally:
            os.close(descriptor)
